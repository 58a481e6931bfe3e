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

#include "base/parse.h"
#include "cli/doctor.h"
#include "cli/gpu_use.h"

enum {
    PCI_ID_BYTES = 32,
    TEXT_BYTES = 32
};

/* 12030 is 12.3 */
static void version_text(int version, char *text)
{
    (void)snprintf(text, TEXT_BYTES, "%d.%d", version / 1000,
                   version % 1000 / 10);
}

static void print_versions(const sl_nvml_t *nvml)
{
    char built[TEXT_BYTES], loaded[TEXT_BYTES] = "unknown",
                            driver[TEXT_BYTES] = "none";
    int version = 0;

    version_text(CUDART_VERSION, built);
    if (cudaRuntimeGetVersion(&version) == cudaSuccess) {
        version_text(version, loaded);
    }
    /* 0 = no driver */
    if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0) {
        version_text(version, driver);
    }
    (void)printf("%-14s runtime %s (built against %s), driver for up to %s%s%s"
                 "\n",
                 "CUDA", loaded, built, driver,
                 nvml == NULL ? "" : ", version ",
                 nvml == NULL ? "" : sl_nvml_driver(nvml));
    (void)printf("%-14s %s\n", "built for", SL_CUDA_ARCHITECTURES);
}

/* 91900 is 9.19.0. The build and the library loaded agree, or which differs:
 * of another major version it cannot be used. */
static void print_library(const char *name, int built, int loaded)
{
    (void)printf("%-14s %d.%d.%d (built against %d.%d.%d)%s\n", name,
                 loaded / 10000, loaded / 100 % 100, loaded % 100,
                 built / 10000, built / 100 % 100, built % 100,
                 built / 10000 == loaded / 10000
                     ? ""
                     : ": another major version than the build's");
}

static void print_libraries(void)
{
    int nccl = 0;

    print_library("cuBLASLt", CUBLAS_VERSION, (int)cublasLtGetVersion());
    print_library("cuDNN", CUDNN_VERSION, (int)cudnnGetVersion());
    if (ncclGetVersion(&nccl) == ncclSuccess) {
        print_library("NCCL", NCCL_VERSION_CODE, nccl);
    } else {
        (void)printf("%-14s does not tell its version\n", "NCCL");
    }
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

static const char *cover_text(int is_covered_by_it)
{
    return is_covered_by_it > 0    ? "this build has code for it"
           : is_covered_by_it == 0 ? "NOT covered by this build: configure "
                                     "with its number in "
                                     "SL_CUDA_ARCHITECTURES"
                                   : "built for the GPUs of one machine";
}

static void print_memory(int device)
{
    char free_text[TEXT_BYTES], total_text[TEXT_BYTES];
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaSetDevice(device);

    if (error == cudaSuccess) {
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    }
    if (error != cudaSuccess) {
        (void)printf("%-14s cannot be used: %s (%s)\n", "",
                     cudaGetErrorString(error), cudaGetErrorName(error));
        return;
    }
    sl_format_bytes(free_bytes, free_text, sizeof(free_text));
    sl_format_bytes(total_bytes, total_text, sizeof(total_text));
    (void)printf("%-14s %s of memory, %s free\n", "", total_text, free_text);
}

static void print_device(const sl_nvml_t *nvml, int device)
{
    struct cudaDeviceProp prop;
    char pci_id[PCI_ID_BYTES], use[256];
    const cudaError_t error = cudaGetDeviceProperties(&prop, device);
    int index = -1;

    if (error != cudaSuccess) {
        (void)printf("gpu %-10d cannot be asked: %s (%s)\n", device,
                     cudaGetErrorString(error), cudaGetErrorName(error));
        return;
    }
    (void)printf("gpu %-10d %s, compute capability %d.%d: %s\n", device,
                 prop.name, prop.major, prop.minor,
                 cover_text(is_covered(prop.major, prop.minor)));
    print_memory(device);
    if (cudaDeviceGetPCIBusId(pci_id, PCI_ID_BYTES, device) != cudaSuccess) {
        return;
    }
    if (nvml != NULL) {
        index = sl_nvml_find(nvml, pci_id);
    }
    (void)printf("%-14s bus %s", "", pci_id);
    if (index >= 0) {
        sl_gpu_use_text(nvml, index, use, sizeof(use));
        (void)printf(", %s", use);
    }
    (void)printf("\n");
}

/* How device `a` reaches the memory of `b`. */
static const char *way(const sl_nvml_t *nvml, int a, int b)
{
    char pci_a[PCI_ID_BYTES], pci_b[PCI_ID_BYTES];
    int can = 0;

    if (a == b) {
        return "-";
    }
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

static void print_ways(const sl_nvml_t *nvml, int n_devices)
{
    int a, b;

    if (n_devices < 2) {
        return;
    }
    (void)printf("%-14s", "gpu reaches");
    for (b = 0; b < n_devices; b++) {
        (void)printf(" %6d", b);
    }
    (void)printf("\n");
    for (a = 0; a < n_devices; a++) {
        (void)printf("%13d ", a);
        for (b = 0; b < n_devices; b++) {
            (void)printf(" %6s", way(nvml, a, b));
        }
        (void)printf("\n");
    }
}

void sl_doctor_cuda(const sl_nvml_t *nvml)
{
    int n_devices = 0;
    cudaError_t error;
    int i;

    print_versions(nvml);
    print_libraries();
    error = cudaGetDeviceCount(&n_devices);
    if (error != cudaSuccess) {
        (void)printf("%-14s none: %s (%s)\n", "gpus", cudaGetErrorString(error),
                     cudaGetErrorName(error));
        return;
    }
    for (i = 0; i < n_devices; i++) {
        print_device(nvml, i);
    }
    print_ways(nvml, n_devices);
}
