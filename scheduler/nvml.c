/* SPDX-License-Identifier: Apache-2.0 */
/* The management library's functions, by our own declarations: nothing of it
 * is needed to build. Numbers and layouts are those of its version 12 and 13.
 */
#include "scheduler/nvml.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"

enum {
    RETURN_SUCCESS = 0,
    RETURN_INSUFFICIENT_SIZE = 7,
    P2P_INDEX_READ = 0,
    P2P_INDEX_NVLINK = 2,
    P2P_STATUS_OK = 0,
    P2P_STATUS_UNKNOWN = 6,
    FEATURE_ENABLED = 1,
    MAX_LINKS = 18,
    PCI_ID_BYTES = 32,
    PCI_LEGACY_BYTES = 16
};

typedef struct nvml_device *device_t; /* the library's */

typedef struct pci_info {
    char bus_id_legacy[PCI_LEGACY_BYTES];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[PCI_ID_BYTES];
} pci_info_t;

typedef struct utilization {
    unsigned gpu, memory; /* percent */
} utilization_t;

typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info_t;

typedef struct process_info {
    unsigned pid;
    unsigned long long used_bytes; /* all bits set: not available */
    unsigned gpu_instance, compute_instance;
} process_info_t;

/* Without the first ones there is nothing to tell; the rest may be missing.
 */
#define NVML_NEEDED_MAP(X)                                                     \
    X(nvmlInit_v2, (void))                                                     \
    X(nvmlShutdown, (void))                                                    \
    X(nvmlDeviceGetCount_v2, (unsigned *))                                     \
    X(nvmlDeviceGetHandleByIndex_v2, (unsigned, device_t *))
#define NVML_OPTIONAL_MAP(X)                                                   \
    X(nvmlSystemGetDriverVersion, (char *, unsigned))                          \
    X(nvmlDeviceGetName, (device_t, char *, unsigned))                         \
    X(nvmlDeviceGetUUID, (device_t, char *, unsigned))                         \
    X(nvmlDeviceGetPciInfo_v3, (device_t, pci_info_t *))                       \
    X(nvmlDeviceGetHandleByPciBusId_v2, (const char *, device_t *))            \
    X(nvmlDeviceGetUtilizationRates, (device_t, utilization_t *))              \
    X(nvmlDeviceGetMemoryInfo, (device_t, memory_info_t *))                    \
    X(nvmlDeviceGetComputeRunningProcesses_v3,                                 \
      (device_t, unsigned *, process_info_t *))                                \
    X(nvmlDeviceGetP2PStatus, (device_t, device_t, int, int *))                \
    X(nvmlDeviceGetNvLinkState, (device_t, unsigned, int *))

struct sl_nvml {
    void *library;
    char driver[SL_NVML_TEXT_BYTES];
    int n_devices;
    struct {
#define X(name, arguments) int(*name) arguments;
        NVML_NEEDED_MAP(X)
        NVML_OPTIONAL_MAP(X)
#undef X
        const char *(*nvmlErrorString)(int);
    } call;
};

/* Into a function pointer; 0 when there is none. */
static int find(void *library, const char *name, void *function_p)
{
    void *address = dlsym(library, name);

    memcpy(function_p, &address, sizeof(address));
    return address != NULL;
}

static const char *error_text(const sl_nvml_t *nvml, int error)
{
    return nvml->call.nvmlErrorString != NULL
               ? nvml->call.nvmlErrorString(error)
               : "no text";
}

static sl_status_t load(sl_nvml_t *nvml)
{
    sl_status_t status = SL_OK;
    const char *missing = NULL;

    nvml->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (nvml->library == NULL) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "%s is not here: no NVIDIA driver, or not its library",
                  LIBRARY);
    }
#define X(name, arguments)                                                     \
    if (!find(nvml->library, #name, &nvml->call.name)) {                       \
        missing = #name;                                                       \
    }
    NVML_NEEDED_MAP(X)
#undef X
    if (missing != NULL) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, out,
                  "%s has no %s: a driver of CUDA 12 or newer is needed",
                  LIBRARY, missing);
    }
#define X(name, arguments) (void)find(nvml->library, #name, &nvml->call.name);
    NVML_OPTIONAL_MAP(X)
#undef X
    (void)find(nvml->library, "nvmlErrorString", &nvml->call.nvmlErrorString);
out:
    return status;
}

sl_status_t sl_nvml_open(sl_nvml_t **nvml_p)
{
    sl_nvml_t *nvml = calloc(1, sizeof(*nvml));
    unsigned count = 0;
    sl_status_t status;
    int error;

    if (nvml == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "%s: no host memory", LIBRARY);
    }
    SL_TRY(status, load(nvml), err_close);
    error = nvml->call.nvmlInit_v2();
    if (error != RETURN_SUCCESS) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, err_close,
                  "%s does not start: %s", LIBRARY, error_text(nvml, error));
    }
    error = nvml->call.nvmlDeviceGetCount_v2(&count);
    if (error != RETURN_SUCCESS) {
        SL_REFUSE(status, SL_ERR_UNSUPPORTED, err_shutdown,
                  "%s counts no GPUs: %s", LIBRARY, error_text(nvml, error));
    }
    nvml->n_devices = (int)count;
    if (nvml->call.nvmlSystemGetDriverVersion == NULL ||
        nvml->call.nvmlSystemGetDriverVersion(
            nvml->driver, sizeof(nvml->driver)) != RETURN_SUCCESS) {
        nvml->driver[0] = '\0';
    }
    *nvml_p = nvml;
    return SL_OK;

err_shutdown:
    (void)nvml->call.nvmlShutdown();
err_close:
    if (nvml->library != NULL) {
        (void)dlclose(nvml->library);
    }
    free(nvml);
out:
    return status;
}

void sl_nvml_close(sl_nvml_t *nvml)
{
    if (nvml == NULL) {
        return;
    }
    (void)nvml->call.nvmlShutdown();
    (void)dlclose(nvml->library);
    free(nvml);
}

const char *sl_nvml_driver(const sl_nvml_t *nvml)
{
    return nvml->driver;
}

int sl_nvml_count(const sl_nvml_t *nvml)
{
    return nvml->n_devices;
}

/* NULL when the GPU cannot be had. */
static device_t handle_of(const sl_nvml_t *nvml, int index)
{
    device_t handle = NULL;

    return index >= 0 && index < nvml->n_devices &&
                   nvml->call.nvmlDeviceGetHandleByIndex_v2(
                       (unsigned)index, &handle) == RETURN_SUCCESS
               ? handle
               : NULL;
}

int sl_nvml_find(const sl_nvml_t *nvml, const char *pci_id)
{
    device_t wanted = NULL;
    int i;

    if (nvml->call.nvmlDeviceGetHandleByPciBusId_v2 == NULL ||
        nvml->call.nvmlDeviceGetHandleByPciBusId_v2(pci_id, &wanted) !=
            RETURN_SUCCESS) {
        return -1;
    }
    for (i = 0; i < nvml->n_devices; i++) {
        if (handle_of(nvml, i) == wanted) {
            return i;
        }
    }
    return -1;
}

static void read_names(const sl_nvml_t *nvml, device_t handle,
                       sl_nvml_device_t *device)
{
    pci_info_t pci;

    if (nvml->call.nvmlDeviceGetName == NULL ||
        nvml->call.nvmlDeviceGetName(handle, device->name,
                                     sizeof(device->name)) != RETURN_SUCCESS) {
        device->name[0] = '\0';
    }
    if (nvml->call.nvmlDeviceGetUUID == NULL ||
        nvml->call.nvmlDeviceGetUUID(handle, device->uuid,
                                     sizeof(device->uuid)) != RETURN_SUCCESS) {
        device->uuid[0] = '\0';
    }
    memset(&pci, 0, sizeof(pci));
    if (nvml->call.nvmlDeviceGetPciInfo_v3 != NULL &&
        nvml->call.nvmlDeviceGetPciInfo_v3(handle, &pci) == RETURN_SUCCESS) {
        memcpy(device->pci_id, pci.bus_id, sizeof(pci.bus_id));
        device->pci_id[sizeof(pci.bus_id)] = '\0';
    }
}

static void read_use(const sl_nvml_t *nvml, device_t handle,
                     sl_nvml_device_t *device)
{
    utilization_t use = {0, 0};
    memory_info_t memory = {0, 0, 0};

    device->busy_percent = -1;
    device->memory_busy_percent = -1;
    if (nvml->call.nvmlDeviceGetUtilizationRates != NULL &&
        nvml->call.nvmlDeviceGetUtilizationRates(handle, &use) ==
            RETURN_SUCCESS) {
        device->busy_percent = (int)use.gpu;
        device->memory_busy_percent = (int)use.memory;
    }
    if (nvml->call.nvmlDeviceGetMemoryInfo != NULL &&
        nvml->call.nvmlDeviceGetMemoryInfo(handle, &memory) == RETURN_SUCCESS) {
        device->total_bytes = memory.total;
        device->used_bytes = memory.used;
    }
}

static void read_processes(const sl_nvml_t *nvml, device_t handle,
                           sl_nvml_device_t *device)
{
    process_info_t infos[SL_NVML_MAX_PROCESSES];
    unsigned n = SL_NVML_MAX_PROCESSES;
    unsigned i;
    int error;

    device->n_processes = -1;
    if (nvml->call.nvmlDeviceGetComputeRunningProcesses_v3 == NULL) {
        return;
    }
    error =
        nvml->call.nvmlDeviceGetComputeRunningProcesses_v3(handle, &n, infos);
    if (error == RETURN_INSUFFICIENT_SIZE) {
        device->n_processes = (int)n; /* none of them is listed */
        return;
    }
    if (error != RETURN_SUCCESS) {
        return;
    }
    device->n_processes = (int)n;
    for (i = 0; i < n && i < SL_NVML_MAX_PROCESSES; i++) {
        device->processes[i].pid = infos[i].pid;
        device->processes[i].bytes = infos[i].used_bytes;
    }
}

static int links_of(const sl_nvml_t *nvml, device_t handle)
{
    unsigned link;
    int n = 0;

    for (link = 0;
         link < MAX_LINKS && nvml->call.nvmlDeviceGetNvLinkState != NULL;
         link++) {
        int is_on = 0;

        n += nvml->call.nvmlDeviceGetNvLinkState(handle, link, &is_on) ==
                 RETURN_SUCCESS &&
             is_on == FEATURE_ENABLED;
    }
    return n;
}

sl_status_t sl_nvml_device(const sl_nvml_t *nvml, int index,
                           sl_nvml_device_t *device_p)
{
    sl_nvml_device_t device;
    device_t handle;
    sl_status_t status = SL_OK;

    if (index < 0 || index >= nvml->n_devices) {
        SL_FAIL(status, SL_ERR_INVALID_ARG, out, "GPU %d of %d", index,
                nvml->n_devices);
    }
    handle = handle_of(nvml, index);
    if (handle == NULL) {
        SL_REFUSE(status, SL_ERR_DEVICE, out, "GPU %d cannot be asked", index);
    }
    memset(&device, 0, sizeof(device));
    read_names(nvml, handle, &device);
    read_use(nvml, handle, &device);
    read_processes(nvml, handle, &device);
    device.n_links = links_of(nvml, handle);
    *device_p = device;
out:
    return status;
}

/* Whether the way is open; -1 = not told. */
static int p2p_is_open(const sl_nvml_t *nvml, device_t a, device_t b, int index)
{
    int status = P2P_STATUS_UNKNOWN;

    if (nvml->call.nvmlDeviceGetP2PStatus == NULL || a == NULL || b == NULL ||
        nvml->call.nvmlDeviceGetP2PStatus(a, b, index, &status) !=
            RETURN_SUCCESS ||
        status == P2P_STATUS_UNKNOWN) {
        return -1;
    }
    return status == P2P_STATUS_OK;
}

sl_nvml_p2p_t sl_nvml_p2p(const sl_nvml_t *nvml, int a, int b)
{
    const device_t from = handle_of(nvml, a), to = handle_of(nvml, b);
    const int reads = p2p_is_open(nvml, from, to, P2P_INDEX_READ);

    if (p2p_is_open(nvml, from, to, P2P_INDEX_NVLINK) == 1) {
        return SL_NVML_P2P_NVLINK;
    }
    return reads < 0    ? SL_NVML_P2P_UNKNOWN
           : reads == 0 ? SL_NVML_P2P_NONE
                        : SL_NVML_P2P_PCI;
}

uint64_t sl_nvml_others_bytes(const sl_nvml_device_t *device, unsigned pid)
{
    uint64_t bytes = 0;
    int i;

    for (i = 0; i < device->n_processes && i < SL_NVML_MAX_PROCESSES; i++) {
        const sl_nvml_process_t *process = &device->processes[i];

        if (process->pid != pid && process->bytes != UINT64_MAX) {
            bytes += process->bytes;
        }
    }
    return bytes;
}
