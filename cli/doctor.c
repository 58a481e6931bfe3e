/* SPDX-License-Identifier: Apache-2.0 */
/* `sluice doctor`: what this machine offers, what is missing, and the command
 * that installs it. */
#include "cli/doctor.h"

#include <dnnl.h>
#include <hwloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/commands.h"
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

static json_t *cpu_facts(void)
{
    char model[256];

    sl_device_cpu_model(model, sizeof(model));
    return json_pack("{s:s, s:i, s:s, s:I}", "model", model, "cores",
                     sl_device_cores(NULL, 0), "vectors", isa_name(),
                     "channel_block", (json_int_t)sl_channel_block());
}

static json_t *library_facts(void)
{
    const dnnl_version_t *dnnl = dnnl_version();
    const unsigned hwloc = hwloc_get_api_version();
    char dnnl_text[32], hwloc_text[32];

    (void)snprintf(dnnl_text, sizeof(dnnl_text), "%d.%d.%d", dnnl->major,
                   dnnl->minor, dnnl->patch);
    (void)snprintf(hwloc_text, sizeof(hwloc_text), "%u.%u.%u", hwloc >> 16,
                   hwloc >> 8 & 0xffu, hwloc & 0xffu);
    return json_pack("{s:s, s:s, s:s}", "onednn", dnnl_text, "jansson",
                     jansson_version_str(), "hwloc", hwloc_text);
}

static json_t *program_facts(void)
{
    json_t *facts = json_array();
    size_t i;

    for (i = 0; i < sizeof(programs) / sizeof(*programs); i++) {
        (void)json_array_append_new(
            facts,
            json_pack("{s:s, s:b, s:s, s:s}", "name", programs[i].program,
                      "is_found", is_on_path(programs[i].program), "purpose",
                      programs[i].what, "install", programs[i].install));
    }
    return facts;
}

/* The NVIDIA driver, by its management library, or why it cannot be had. */
static json_t *driver_facts(const sl_nvml_t *nvml)
{
    char reason[256];

    if (nvml != NULL) {
        return json_pack("{s:s, s:i}", "version", sl_nvml_driver(nvml),
                         "n_gpus", sl_nvml_count(nvml));
    }
    (void)snprintf(reason, sizeof(reason), "%s", sl_last_error());
    sl_strip_places(reason);
    return json_pack("{s:s}", "error", reason);
}

/* NULL without memory for it. */
static json_t *find_facts(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES);
    sl_nvml_t *nvml = NULL;
    json_t *facts, *driver;

    if (sl_nvml_open(&nvml) < 0) {
        nvml = NULL; /* most machines have none; the error is read here */
    }
    driver = driver_facts(nvml);
    facts = json_pack("{s:s, s:o, s:I, s:o, s:o, s:o, s:o}", "sluice",
                      SL_VERSION, "cpu", cpu_facts(), "memory_bytes",
                      (json_int_t)pages * (json_int_t)sysconf(_SC_PAGESIZE),
                      "device_kinds",
                      SL_HAVE_CUDA ? json_pack("[s, s]", "cpu", "cuda")
                                   : json_pack("[s]", "cpu"),
                      "libraries", library_facts(), "programs", program_facts(),
                      "nvidia_driver", driver);
    if (facts != NULL) {
        sl_doctor_cuda(nvml, facts);
    }
    sl_nvml_close(nvml);
    return facts;
}

static int print_facts(int is_json)
{
    json_t *facts = find_facts();
    sl_status_t status = SL_OK;

    if (facts == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "no host memory for the facts");
    }
    if (!is_json) {
        sl_doctor_print(facts);
    } else if (json_dumpf(facts, stdout, JSON_INDENT(2)) != 0 ||
               printf("\n") < 0) {
        SL_FAIL(status, SL_ERR_IO, out, "cannot write JSON");
    }
out:
    json_decref(facts);
    return sl_exit_status(status);
}

int sl_command_doctor(int argc, char **argv)
{
    const int is_help = argc == 2 && strcmp(argv[1], "--help") == 0;
    const int is_json = argc == 2 && strcmp(argv[1], "--json") == 0;

    if (argc > 1 && !is_json) {
        (void)fprintf(is_help ? stdout : stderr,
                      "Usage: sluice doctor [--json]\n"
                      "Show what this machine offers and what is missing.\n\n"
                      "  --json  Print the same as one JSON object\n");
        return is_help ? 0 : 2;
    }
    return print_facts(is_json);
}
