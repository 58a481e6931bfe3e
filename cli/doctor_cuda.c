/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice doctor` in a build with CUDA. Nothing here ends it: what cannot be
 * asked is said so. */
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor.h"
#include "cli/gpu_use.h"

enum {
    PCI_ID_BYTES = 32
};

/* 12030 is 12.3; null below 1 */
static json_t *cuda_version(int version)
{
    return version < 1
               ? json_null()
               : json_sprintf("%d.%d", version / 1000, version % 1000 / 10);
}

/* 91900 is 9.19.0. Of another major version than the build's it cannot be
 * used. @param loaded 0 = not told */
static json_t *library_facts(int built, int loaded)
{
    return json_pack(
        "{s:o, s:o, s:b}", "version",
        loaded == 0 ? json_null()
                    : json_sprintf("%d.%d.%d", loaded / 10000,
                                   loaded / 100 % 100, loaded % 100),
        "built_against",
        json_sprintf("%d.%d.%d", built / 10000, built / 100 % 100, built % 100),
        "is_usable", built / 10000 == loaded / 10000);
}

static json_t *error_text(cudaError_t error)
{
    return json_sprintf("%s (%s)", cudaGetErrorString(error),
                        cudaGetErrorName(error));
}

static json_t *cuda_facts(void)
{
    int runtime = 0, driver = 0, nccl = 0;

    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess) {
        runtime = 0;
    }
    if (cudaDriverGetVersion(&driver) != cudaSuccess) {
        driver = 0; /* as where there is none */
    }
    if (ncclGetVersion(&nccl) != ncclSuccess) {
        nccl = 0;
    }
    return json_pack(
        "{s:b, s:o, s:o, s:o, s:s, s:o, s:o, s:o}", "is_built", 1, "runtime",
        cuda_version(runtime), "built_against", cuda_version(CUDART_VERSION),
        "driver", cuda_version(driver), "built_for", SL_CUDA_ARCHITECTURES,
        "cublaslt", library_facts(CUBLAS_VERSION, (int)cublasLtGetVersion()),
        "cudnn", library_facts(CUDNN_VERSION, (int)cudnnGetVersion()), "nccl",
        library_facts(NCCL_VERSION_CODE, nccl));
}

/* Whether one entry of the build's list ("90-real", "90a-real", "80",
 * "80-virtual") runs on a device: machine code on its own generation, from
 * its number on; code for the driver's compiler on all later ones. */
static int entry_covers(const char *entry, int major, int minor)
{
    char *end;
    const long number = strtol(entry, &end, 10);
    const int is_exact = *end == 'a' || *end == 'f';
    const int is_own = number / 10 == major && (int)(number % 10) <= minor;

    end += is_exact;
    if (is_exact) {
        return number == major * 10 + minor;
    }
    return is_own ||
           (strncmp(end, "-real", 5) != 0 && number <= major * 10 + minor);
}

/* -1: the build does not say for which ones it is. */
static int is_covered(int major, int minor)
{
    char list[256];
    char *at = NULL;
    const char *entry;

    (void)snprintf(list, sizeof(list), "%s", SL_CUDA_ARCHITECTURES);
    for (entry = strtok_r(list, " ", &at); entry != NULL;
         entry = strtok_r(NULL, " ", &at)) {
        if (*entry < '0' || *entry > '9') {
            return -1;
        }
        if (entry_covers(entry, major, minor)) {
            return 1;
        }
    }
    return 0;
}

static json_t *cover(int major, int minor)
{
    const int is_covered_by_it = is_covered(major, minor);

    return is_covered_by_it < 0 ? json_null() : json_boolean(is_covered_by_it);
}

/* The device's memory, or why it cannot be used. */
static void add_memory(int device, json_t *gpu)
{
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaSetDevice(device);

    if (error == cudaSuccess) {
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    }
    if (error != cudaSuccess) {
        (void)json_object_set_new(gpu, "error", error_text(error));
        return;
    }
    (void)json_object_set_new(gpu, "total_bytes",
                              json_integer((json_int_t)total_bytes));
    (void)json_object_set_new(gpu, "free_bytes",
                              json_integer((json_int_t)free_bytes));
}

/* Where it is, and everybody's use of it. */
static void add_use(const sl_nvml_t *nvml, int device, json_t *gpu)
{
    char pci_id[PCI_ID_BYTES];
    int index = -1;

    if (cudaDeviceGetPCIBusId(pci_id, PCI_ID_BYTES, device) != cudaSuccess) {
        return;
    }
    (void)json_object_set_new(gpu, "bus", json_string(pci_id));
    if (nvml != NULL) {
        index = sl_nvml_find(nvml, pci_id);
    }
    if (index >= 0) {
        (void)json_object_set_new(gpu, "use", sl_gpu_use_of(nvml, index));
    }
}

static json_t *device_facts(const sl_nvml_t *nvml, int device)
{
    struct cudaDeviceProp prop;
    const cudaError_t error = cudaGetDeviceProperties(&prop, device);
    json_t *gpu;

    if (error != cudaSuccess) {
        return json_pack("{s:i, s:o}", "index", device, "error",
                         error_text(error));
    }
    gpu = json_pack("{s:i, s:s, s:o, s:o}", "index", device, "name", prop.name,
                    "compute_capability",
                    json_sprintf("%d.%d", prop.major, prop.minor), "is_covered",
                    cover(prop.major, prop.minor));
    add_memory(device, gpu);
    add_use(nvml, device, gpu);
    return gpu;
}

/* How device `a` reaches the memory of `b`, another. */
static const char *way(const sl_nvml_t *nvml, int a, int b)
{
    char pci_a[PCI_ID_BYTES], pci_b[PCI_ID_BYTES];
    int can = 0;

    if (cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess) {
        return "?";
    }
    if (can && nvml != NULL &&
        cudaDeviceGetPCIBusId(pci_a, PCI_ID_BYTES, a) == cudaSuccess &&
        cudaDeviceGetPCIBusId(pci_b, PCI_ID_BYTES, b) == cudaSuccess &&
        sl_nvml_p2p(nvml, sl_nvml_find(nvml, pci_a),
                    sl_nvml_find(nvml, pci_b)) == SL_NVML_P2P_NVLINK) {
        return "nvlink";
    }
    return can ? "direct" : "host";
}

static json_t *find_ways(const sl_nvml_t *nvml, int n_devices)
{
    json_t *ways = json_array();
    int a, b;

    for (a = 0; a < n_devices; a++) {
        json_t *row = json_array();

        for (b = 0; b < n_devices; b++) {
            (void)json_array_append_new(
                row, a == b ? json_null() : json_string(way(nvml, a, b)));
        }
        (void)json_array_append_new(ways, row);
    }
    return ways;
}

void sl_doctor_cuda(const sl_nvml_t *nvml, json_t *facts)
{
    json_t *cuda = cuda_facts();
    json_t *gpus = json_array();
    int n_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&n_devices);
    int i;

    if (error != cudaSuccess) {
        n_devices = 0;
        (void)json_object_set_new(cuda, "error", error_text(error));
    }
    for (i = 0; i < n_devices; i++) {
        (void)json_array_append_new(gpus, device_facts(nvml, i));
    }
    (void)json_object_set_new(facts, "cuda", cuda);
    (void)json_object_set_new(facts, "gpus", gpus);
    (void)json_object_set_new(facts, "gpu_ways", find_ways(nvml, n_devices));
}
