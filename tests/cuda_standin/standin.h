/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file standin.h
 * What a test may ask of the stand-in for the CUDA runtime: failures at a
 * chosen call, calls counted, and what the order checker found.
 *
 * The order checker keeps a vector clock for each stream, event and for the
 * host (all host threads together: their order is the thread checker's
 * business). Each copy, fill and kernel declares the bytes it reads and
 * writes; two of them that touch the same bytes, one writing, must be ordered
 * by a stream, an event or a wait of the host. What is not gets reported, as
 * does the use of memory that is not allocated.
 */
#ifndef SL_TESTS_CUDA_STANDIN_STANDIN_H
#define SL_TESTS_CUDA_STANDIN_STANDIN_H

#include <cuda_runtime_api.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Those of cuBLASLt; its handles and descriptions need no device. */
#define SL_STANDIN_BLAS_MAP(X)                                                 \
    X(cublasLtCreate)                                                          \
    X(cublasLtDestroy)                                                         \
    X(cublasLtMatrixLayoutCreate)                                              \
    X(cublasLtMatrixLayoutDestroy)                                             \
    X(cublasLtMatrixLayoutSetAttribute)                                        \
    X(cublasLtMatmulDescCreate)                                                \
    X(cublasLtMatmulDescDestroy)                                               \
    X(cublasLtMatmulDescSetAttribute)                                          \
    X(cublasLtMatmulPreferenceCreate)                                          \
    X(cublasLtMatmulPreferenceDestroy)                                         \
    X(cublasLtMatmulPreferenceSetAttribute)                                    \
    X(cublasLtMatmulAlgoGetHeuristic)                                          \
    X(cublasLtMatmulAlgoConfigGetAttribute)                                    \
    X(cublasLtMatmul)
/** Those of cuDNN; its descriptions need no device. */
#define SL_STANDIN_DNN_MAP(X)                                                  \
    X(cudnnCreate)                                                             \
    X(cudnnDestroy)                                                            \
    X(cudnnSetStream)                                                          \
    X(cudnnCreateTensorDescriptor)                                             \
    X(cudnnSetTensor4dDescriptor)                                              \
    X(cudnnDestroyTensorDescriptor)                                            \
    X(cudnnCreateFilterDescriptor)                                             \
    X(cudnnSetFilter4dDescriptor)                                              \
    X(cudnnDestroyFilterDescriptor)                                            \
    X(cudnnCreateConvolutionDescriptor)                                        \
    X(cudnnSetConvolution2dDescriptor)                                         \
    X(cudnnSetConvolutionGroupCount)                                           \
    X(cudnnSetConvolutionMathType)                                             \
    X(cudnnDestroyConvolutionDescriptor)                                       \
    X(cudnnGetConvolutionForwardAlgorithm_v7)                                  \
    X(cudnnGetConvolutionForwardWorkspaceSize)                                 \
    X(cudnnConvolutionForward)                                                 \
    X(cudnnGetConvolutionBackwardDataAlgorithm_v7)                             \
    X(cudnnGetConvolutionBackwardDataWorkspaceSize)                            \
    X(cudnnConvolutionBackwardData)                                            \
    X(cudnnGetConvolutionBackwardFilterAlgorithm_v7)                           \
    X(cudnnGetConvolutionBackwardFilterWorkspaceSize)                          \
    X(cudnnConvolutionBackwardFilter)                                          \
    X(cudnnCreatePoolingDescriptor)                                            \
    X(cudnnSetPooling2dDescriptor)                                             \
    X(cudnnDestroyPoolingDescriptor)                                           \
    X(cudnnPoolingForward)                                                     \
    X(cudnnPoolingBackward)                                                    \
    X(cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize)                \
    X(cudnnGetBatchNormalizationBackwardExWorkspaceSize)                       \
    X(cudnnGetBatchNormalizationTrainingExReserveSpaceSize)                    \
    X(cudnnBatchNormalizationForwardTrainingEx)                                \
    X(cudnnBatchNormalizationBackwardEx)                                       \
    X(cudnnBackendCreateDescriptor)                                            \
    X(cudnnBackendDestroyDescriptor)                                           \
    X(cudnnBackendFinalize)                                                    \
    X(cudnnBackendSetAttribute)                                                \
    X(cudnnBackendGetAttribute)                                                \
    X(cudnnBackendExecute)

/** Those of NCCL; an injected error is an ncclResult_t. */
#define SL_STANDIN_NCCL_MAP(X)                                                 \
    X(ncclGetVersion)                                                          \
    X(ncclGetUniqueId)                                                         \
    X(ncclCommInitRankConfig)                                                  \
    X(ncclCommFinalize)                                                        \
    X(ncclCommDestroy)                                                         \
    X(ncclCommAbort)                                                           \
    X(ncclCommGetAsyncError)                                                   \
    X(ncclSend)                                                                \
    X(ncclRecv)                                                                \
    X(ncclGroupStart)                                                          \
    X(ncclGroupEnd)

/** The entry points: each is counted and can be made to fail. */
#define SL_STANDIN_ENTRY_MAP(X)                                                \
    X(cudaRuntimeGetVersion)                                                   \
    X(cudaDriverGetVersion)                                                    \
    X(cudaGetDeviceCount)                                                      \
    X(cudaSetDevice)                                                           \
    X(cudaSetDeviceFlags)                                                      \
    X(cudaGetDevice)                                                           \
    X(cudaGetDeviceProperties)                                                 \
    X(cudaDeviceGetAttribute)                                                  \
    X(cudaDeviceGetPCIBusId)                                                   \
    X(cudaDeviceSynchronize)                                                   \
    X(cudaDeviceCanAccessPeer)                                                 \
    X(cudaDeviceEnablePeerAccess)                                              \
    X(cudaGetDriverEntryPointByVersion)                                        \
    X(cuDeviceGet)                                                             \
    X(cuDeviceGetAttribute)                                                    \
    X(cuMemGetAllocationGranularity)                                           \
    X(cuMemAddressReserve)                                                     \
    X(cuMemAddressFree)                                                        \
    X(cuMemCreate)                                                             \
    X(cuMemRelease)                                                            \
    X(cuMemMap)                                                                \
    X(cuMemUnmap)                                                              \
    X(cuMemSetAccess)                                                          \
    X(cudaMalloc)                                                              \
    X(cudaFree)                                                                \
    X(cudaMallocAsync)                                                         \
    X(cudaFreeAsync)                                                           \
    X(cudaHostAlloc)                                                           \
    X(cudaFreeHost)                                                            \
    X(cudaMemGetInfo)                                                          \
    X(cudaMemcpy)                                                              \
    X(cudaMemcpyAsync)                                                         \
    X(cudaMemcpyPeerAsync)                                                     \
    X(cudaMemset)                                                              \
    X(cudaMemsetAsync)                                                         \
    X(cudaStreamCreateWithFlags)                                               \
    X(cudaStreamDestroy)                                                       \
    X(cudaStreamSynchronize)                                                   \
    X(cudaStreamQuery)                                                         \
    X(cudaStreamWaitEvent)                                                     \
    X(cudaLaunchHostFunc)                                                      \
    X(cudaEventCreateWithFlags)                                                \
    X(cudaEventDestroy)                                                        \
    X(cudaEventRecord)                                                         \
    X(cudaEventQuery)                                                          \
    X(cudaEventSynchronize)                                                    \
    X(cudaEventElapsedTime)                                                    \
    X(cudaLaunchKernelEx)                                                      \
    X(cudaThreadExchangeStreamCaptureMode)                                     \
    X(cudaStreamBeginCapture)                                                  \
    X(cudaStreamEndCapture)                                                    \
    X(cudaGraphInstantiate)                                                    \
    X(cudaGraphExecUpdate)                                                     \
    X(cudaGraphLaunch)                                                         \
    X(cudaGraphExecDestroy)                                                    \
    X(cudaGraphDestroy)                                                        \
    SL_STANDIN_BLAS_MAP(X)                                                     \
    SL_STANDIN_DNN_MAP(X)                                                      \
    SL_STANDIN_NCCL_MAP(X)

typedef enum standin_entry {
#define X(name) STANDIN_##name,
    SL_STANDIN_ENTRY_MAP(X)
#undef X
    STANDIN_N_ENTRIES
} standin_entry_t;

/** When an injected failure shows. */
typedef enum standin_failure {
    STANDIN_FAIL_CALL, /**< the call returns it and does nothing */
    STANDIN_FAIL_RUN   /**< the call succeeds; the work fails when the device
                            runs it: an asynchronous, sticky error */
} standin_failure_t;

/**
 * Wait for all streams, then forget everything but streams, events and
 * memory that still live: errors, injected failures, reports, counters and
 * settings. Gives `SL_STANDIN_FAIL=entry:n:error[:run]` of the environment
 * force again. Call it between tests.
 */
void standin_reset(void);

/** Make the n-th call (from 1, counted from now) of an entry point fail; one
 *  failure at a time. */
void standin_fail(standin_entry_t entry, uint64_t n, cudaError_t error,
                  standin_failure_t failure);
/** Once that has happened, make the n-th call from then on of this entry point
 *  fail; both at the call. */
void standin_fail_then(standin_entry_t entry, uint64_t n, cudaError_t error);
/** Whether the injected failure, or both, have happened. */
int standin_has_failed(void);

/** Calls of an entry point since the last reset. */
uint64_t standin_n_calls(standin_entry_t entry);
const char *standin_entry_name(standin_entry_t entry);
/** Copies of ordinary host memory since the process began: the calling thread
 *  may have to wait for the device in them, also in asynchronous ones. */
uint64_t standin_n_blocking_copies(void);

/** Copies from pinned memory to a device that have ended, since the process
 *  began. */
uint64_t standin_n_loads(int device);
/** Called before the first piece of each graph that runs, on its stream's
 *  thread; it may wait for other streams. NULL (default): nothing. */
void standin_set_graph_hook(void (*hook)(int device));

/** Devices that there are (default 2, or SL_STANDIN_DEVICES of the
 *  environment, of which CUDA_VISIBLE_DEVICES shows some by their numbers; at
 *  most 8), and the memory of each (default 3 GiB; at most 8 GiB). */
void standin_set_devices(int n_devices);
/** Whether devices have serial numbers (default 1). */
void standin_set_uuids(int has_uuids);
void standin_set_memory(size_t bytes);
/** Units of memory that is mapped (default 2 MiB; a power of two of at least
 *  4096); 0: the devices cannot do it. */
void standin_set_granularity(size_t bytes);
size_t standin_granularity(void);
/** Whether devices may be let use each other's memory (default 1). */
void standin_set_peers(int can_access);
/** Run the threads of a block, and the blocks, from the last to the first:
 *  a missing barrier then gives other results. */
void standin_set_reverse(int is_reverse);
/** Streams sleep this long before each piece of work. */
void standin_set_delay_us(unsigned microseconds);
/** The calling thread sleeps this long in each call of an entry point. */
void standin_set_slow(standin_entry_t entry, unsigned microseconds);

/** Work that takes so long and does nothing. */
cudaError_t standin_sleep(cudaStream_t stream, unsigned microseconds);

/** Reports since the last reset, and their texts (the first 32 are kept). */
int standin_n_reports(void);
const char *standin_report(int i);
/** Take the reports: a test that expects them. Others print at exit, where
 *  the process ends with status 99. */
void standin_clear_reports(void);

/** Let a stream's work end; the order checker is not told, as if nobody had
 *  waited. */
void standin_wait_unseen(cudaStream_t stream);

/** Live allocations of device and pinned memory, streams, events, graphs and
 *  descriptors of libraries. */
int standin_n_live(void);
size_t standin_device_bytes(int device);
/** Communicators of NCCL that live. */
int standin_n_communicators(void);

/** What NCCL does beside its calls. */
typedef enum standin_nccl_job {
    STANDIN_NCCL_NONE,
    STANDIN_NCCL_MEET,    /**< the making of communicators */
    STANDIN_NCCL_LAUNCH,  /**< putting operations into streams */
    STANDIN_NCCL_FINALIZE /**< ending them */
} standin_nccl_job_t;
/** From now until a reset: that does not end before it is aborted. */
void standin_stall_nccl(standin_nccl_job_t job);

/** Declare bytes that the calling thread's next launch reads or writes. */
void standin_access(const void *ptr, size_t bytes, int is_write);
/** Name of that launch in reports; static. */
void standin_name(const char *name);

#ifdef __cplusplus
}
#endif
#endif /* SL_TESTS_CUDA_STANDIN_STANDIN_H */
