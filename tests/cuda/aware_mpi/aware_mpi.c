/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded before an MPI that knows host memory only, it makes that one that
 * knows the stand-in's device memory: it says so, and what it is given it
 * hands on by the address that the host can use. */
#include <mpi.h>
#include <stdatomic.h>
#include <stddef.h>

/* Set by the stand-in of a process that has it, before there is any memory. */
extern _Atomic(void *(*)(const void *)) standin_mpi_alias;
extern int MPIX_Query_cuda_support(void);

_Atomic(void *(*)(const void *)) standin_mpi_alias;

static void *alias(const void *ptr)
{
    void *(*const find)(const void *) = atomic_load(&standin_mpi_alias);

    return find == NULL ? (void *)(size_t)ptr : find(ptr);
}

int MPIX_Query_cuda_support(void)
{
    return 1;
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag,
              MPI_Comm comm, MPI_Request *request)
{
    return PMPI_Isend(alias(data), n, type, to, tag, comm, request);
}

int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag,
              MPI_Comm comm, MPI_Request *request)
{
    return PMPI_Irecv(alias(data), n, type, from, tag, comm, request);
}
