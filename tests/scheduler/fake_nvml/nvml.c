/* SPDX-License-Identifier: Apache-2.0 */
/* A management library with two GPUs, for tests. FAKE_NVML says how it
 * behaves: "broken" does not start, "lost" has a GPU that does not answer,
 * "crowded" more processes than anybody has room for, "mute" tells nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gpu {
    const char *name, *uuid, *pci_id;
    unsigned busy;
    unsigned long long used;
};

static const struct gpu gpus[] = {
    {"Fake GPU A", "GPU-aaaa", "00000000:0A:00.0", 40, 6ull << 30},
    {"Fake GPU B", "GPU-bbbb", "00000000:0B:00.0", 0, 1ull << 30},
};

static int is(const char *mode)
{
    const char *asked = getenv("FAKE_NVML");

    return asked != NULL && strcmp(asked, mode) == 0;
}

struct pci {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

struct use {
    unsigned gpu, memory;
};

struct memory {
    unsigned long long total, free, used;
};

struct process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int error);
int nvmlSystemGetDriverVersion(char *text, unsigned bytes);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, const struct gpu **gpu);
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, const struct gpu **gpu);
int nvmlDeviceGetName(const struct gpu *gpu, char *text, unsigned bytes);
int nvmlDeviceGetUUID(const struct gpu *gpu, char *text, unsigned bytes);
int nvmlDeviceGetPciInfo_v3(const struct gpu *gpu, struct pci *pci);
int nvmlDeviceGetUtilizationRates(const struct gpu *gpu, struct use *use);
int nvmlDeviceGetMemoryInfo(const struct gpu *gpu, struct memory *memory);
int nvmlDeviceGetComputeRunningProcesses_v3(const struct gpu *gpu,
                                            unsigned *count,
                                            struct process *processes);
int nvmlDeviceGetP2PStatus(const struct gpu *a, const struct gpu *b, int index,
                           int *status);
int nvmlDeviceGetNvLinkState(const struct gpu *gpu, unsigned link, int *is_on);

int nvmlInit_v2(void)
{
    return is("broken") ? 18 : 0;
}

int nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(int error)
{
    return error == 18 ? "Driver/library version mismatch" : "other";
}

static int tell(char *text, unsigned bytes, const char *what)
{
    if (is("mute")) {
        return 3;
    }
    (void)snprintf(text, bytes, "%s", what);
    return 0;
}

int nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    return tell(text, bytes, "580.65.06");
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    *count = 2;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, const struct gpu **gpu)
{
    if (index > 1 || (index == 1 && is("lost"))) {
        return 15;
    }
    *gpu = &gpus[index];
    return 0;
}

/* As the real one, it reads both the long and the short domain. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, const struct gpu **gpu)
{
    const size_t n = strlen(id);
    int i;

    for (i = 0; i < 2; i++) {
        const char *own = gpus[i].pci_id;

        if (n <= strlen(own) && strcmp(own + strlen(own) - n, id) == 0) {
            *gpu = &gpus[i];
            return 0;
        }
    }
    return 6;
}

int nvmlDeviceGetName(const struct gpu *gpu, char *text, unsigned bytes)
{
    return tell(text, bytes, gpu->name);
}

int nvmlDeviceGetUUID(const struct gpu *gpu, char *text, unsigned bytes)
{
    return tell(text, bytes, gpu->uuid);
}

int nvmlDeviceGetPciInfo_v3(const struct gpu *gpu, struct pci *pci)
{
    memset(pci, 0, sizeof(*pci));
    return tell(pci->bus_id, sizeof(pci->bus_id), gpu->pci_id);
}

int nvmlDeviceGetUtilizationRates(const struct gpu *gpu, struct use *use)
{
    use->gpu = gpu->busy;
    use->memory = gpu->busy / 2;
    return is("mute") ? 3 : 0;
}

int nvmlDeviceGetMemoryInfo(const struct gpu *gpu, struct memory *memory)
{
    memory->total = 80ull << 30;
    memory->used = gpu->used;
    memory->free = memory->total - memory->used;
    return is("mute") ? 3 : 0;
}

int nvmlDeviceGetComputeRunningProcesses_v3(const struct gpu *gpu,
                                            unsigned *count,
                                            struct process *processes)
{
    if (is("mute")) {
        return 3;
    }
    if (is("crowded")) {
        *count = 1000;
        return 7;
    }
    *count = 0;
    if (gpu == &gpus[0]) {
        processes[0] = (struct process){100, 2ull << 30, 0, 0};
        processes[1] = (struct process){200, 3ull << 30, 0, 0};
        processes[2] = (struct process){300, ~0ull, 0, 0};
        *count = 3;
    }
    return 0;
}

int nvmlDeviceGetP2PStatus(const struct gpu *a, const struct gpu *b, int index,
                           int *status)
{
    /* one way only */
    *status = is("mute") ? 6 : index == 2 ? 5 : a < b ? 0 : 3;
    return 0;
}

int nvmlDeviceGetNvLinkState(const struct gpu *gpu, unsigned link, int *is_on)
{
    if (gpu != &gpus[0] || link > 3) {
        return 2;
    }
    *is_on = link < 3;
    return 0;
}
