/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice doctor`: what this machine offers, what is missing, and the command
 * that installs it. */
#include <dnnl.h>
#include <hwloc.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/parse.h"
#include "cli/commands.h"
#include "cli/doctor.h"
#include "layers/layers.h"
#include "scheduler/scheduler.h"

/* What can be missing at run time. */
static const struct {
    const char *program, *what, *install;
} programs[] = {
    {"mpirun", "launching over many processes and nodes",
     "apt-get install openmpi-bin"},
    {"rsvg-convert", "turning timelines into PNG",
     "apt-get install librsvg2-bin"},
};

static int is_on_path(const char *program)
{
    const char *path = getenv("PATH");

    while (path != NULL && *path != '\0') {
        const size_t n = strcspn(path, ":");
        char file[1024];

        (void)snprintf(file, sizeof(file), "%.*s/%s", (int)n, path, program);
        if (access(file, X_OK) == 0) {
            return 1;
        }
        path += n + (path[n] == ':');
    }
    return 0;
}

static const char *isa_name(void)
{
    /* the values are sets of features */
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();

    if ((isa & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core) {
        return "AVX-512";
    }
    return (isa & dnnl_cpu_isa_avx2) == dnnl_cpu_isa_avx2 ? "AVX2"
                                                          : "below AVX2: slow";
}

/* GPUs, and the driver's view of them where it can be had. */
static void print_gpus(void)
{
    sl_nvml_t *nvml = NULL;
    char reason[256];

    if (sl_nvml_open(&nvml) != SL_OK) {
        (void)snprintf(reason, sizeof(reason), "%s", sl_last_error());
        sl_strip_places(reason);
        (void)printf("%-14s %s\n", "nvidia driver", reason);
    } else {
        (void)printf("%-14s %s, %d gpu%s\n", "nvidia driver",
                     sl_nvml_driver(nvml), sl_nvml_count(nvml),
                     sl_nvml_count(nvml) == 1 ? "" : "s");
    }
    sl_doctor_cuda(nvml);
    sl_nvml_close(nvml);
    (void)printf("\n");
}

int sl_command_doctor(int argc, char **argv)
{
    const dnnl_version_t *dnnl = dnnl_version();
    const long pages = sysconf(_SC_PHYS_PAGES);
    char memory[32], cpu[256];
    size_t i;

    if (argc > 1) {
        const int is_help = strcmp(argv[1], "--help") == 0;

        (void)fprintf(is_help ? stdout : stderr,
                      "Usage: sluice doctor\nShow what this machine offers and "
                      "what is missing.\n");
        return is_help ? 0 : 2;
    }
    sl_format_bytes((uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE), memory,
                    sizeof(memory));
    sl_device_cpu_model(cpu, sizeof(cpu));
    (void)printf("sluice %s\n\n", SL_VERSION);
    (void)printf("%-14s %s\n", "cpu", cpu);
    (void)printf("%-14s %d usable by this process\n", "cores",
                 sl_device_cores(NULL, 0));
    (void)printf("%-14s %s\n", "memory", memory);
    (void)printf("%-14s %s, channel blocks of %lld\n", "vectors", isa_name(),
                 (long long)sl_channel_block());
    (void)printf("%-14s cpu%s\n", "device kinds", SL_HAVE_CUDA ? ", cuda" : "");
    (void)printf("%-14s %d.%d.%d\n", "oneDNN", dnnl->major, dnnl->minor,
                 dnnl->patch);
    (void)printf("%-14s %s\n", "jansson", jansson_version_str());
    (void)printf("%-14s %u.%u.%u\n\n", "hwloc", hwloc_get_api_version() >> 16,
                 hwloc_get_api_version() >> 8 & 0xffu,
                 hwloc_get_api_version() & 0xffu);
    print_gpus();
    for (i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
        if (is_on_path(programs[i].program)) {
            (void)printf("%-14s found\n", programs[i].program);
        } else {
            (void)printf("%-14s missing: %s\n%-14s %s\n", programs[i].program,
                         programs[i].what, "", programs[i].install);
        }
    }
    return 0;
}
