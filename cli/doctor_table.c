/* SPDX-License-Identifier: Apache-2.0 */
/* The facts of `sluice doctor` as a table. */
#include <stdio.h>
#include <string.h>

#include "base/parse.h"
#include "cli/doctor.h"
#include "cli/gpu_use.h"

/* Of a fact that is a text; "" when it is none. */
static const char *text(const json_t *facts, const char *name)
{
    const char *value = json_string_value(json_object_get(facts, name));

    return value == NULL ? "" : value;
}

static json_int_t number(const json_t *facts, const char *name)
{
    return json_integer_value(json_object_get(facts, name));
}

static int has(const json_t *facts, const char *name)
{
    const json_t *value = json_object_get(facts, name);

    return value != NULL && !json_is_null(value);
}

/* ---- the machine ---- */

static void print_kinds(const json_t *kinds)
{
    const json_t *kind;
    size_t i;

    (void)printf("%-14s ", "device kinds");
    json_array_foreach(kinds, i, kind)
    {
        (void)printf("%s%s", i == 0 ? "" : ", ", json_string_value(kind));
    }
    (void)printf("\n");
}

static void print_machine(const json_t *facts)
{
    const json_t *cpu = json_object_get(facts, "cpu");
    const json_t *libraries = json_object_get(facts, "libraries");
    char memory[32];

    sl_format_bytes((uint64_t)number(facts, "memory_bytes"), memory,
                    sizeof(memory));
    (void)printf("sluice %s\n\n", text(facts, "sluice"));
    (void)printf("%-14s %s\n", "cpu", text(cpu, "model"));
    (void)printf("%-14s %lld usable by this process\n", "cores",
                 (long long)number(cpu, "cores"));
    (void)printf("%-14s %s\n", "memory", memory);
    (void)printf("%-14s %s, channel blocks of %lld\n", "vectors",
                 text(cpu, "vectors"), (long long)number(cpu, "channel_block"));
    print_kinds(json_object_get(facts, "device_kinds"));
    (void)printf("%-14s %s\n", "oneDNN", text(libraries, "onednn"));
    (void)printf("%-14s %s\n", "jansson", text(libraries, "jansson"));
    (void)printf("%-14s %s\n\n", "hwloc", text(libraries, "hwloc"));
}

static void print_programs(const json_t *programs)
{
    const json_t *program;
    size_t i;

    json_array_foreach(programs, i, program)
    {
        if (json_is_true(json_object_get(program, "is_found"))) {
            (void)printf("%-14s found\n", text(program, "name"));
        } else {
            (void)printf("%-14s missing: %s\n%-14s %s\n", text(program, "name"),
                         text(program, "purpose"), "",
                         text(program, "install"));
        }
    }
}

/* ---- CUDA ---- */

static void print_driver(const json_t *driver)
{
    const int n_gpus = (int)number(driver, "n_gpus");

    if (has(driver, "error")) {
        (void)printf("%-14s %s\n", "nvidia driver", text(driver, "error"));
    } else {
        (void)printf("%-14s %s, %d gpu%s\n", "nvidia driver",
                     text(driver, "version"), n_gpus, n_gpus == 1 ? "" : "s");
    }
}

/* Of another major version than the build's a library cannot be used. */
static void print_library(const char *name, const json_t *library)
{
    if (!has(library, "version")) {
        (void)printf("%-14s does not tell its version\n", name);
        return;
    }
    (void)printf("%-14s %s (built against %s)%s\n", name,
                 text(library, "version"), text(library, "built_against"),
                 json_is_true(json_object_get(library, "is_usable"))
                     ? ""
                     : ": another major version than the build's");
}

static void print_cuda(const json_t *cuda, const json_t *driver)
{
    if (!json_is_true(json_object_get(cuda, "is_built"))) {
        (void)printf("%-14s not in this build; with a toolkit of version 12 or "
                     "newer, cuDNN and NCCL:\n%-14s cmake -DSL_CUDA=ON "
                     "(docs/cuda.md)\n",
                     "CUDA", "");
        return;
    }
    (void)printf(
        "%-14s runtime %s (built against %s), driver for up to %s%s%s"
        "\n",
        "CUDA", has(cuda, "runtime") ? text(cuda, "runtime") : "unknown",
        text(cuda, "built_against"),
        has(cuda, "driver") ? text(cuda, "driver") : "none",
        has(driver, "version") ? ", version " : "", text(driver, "version"));
    (void)printf("%-14s %s\n", "built for", text(cuda, "built_for"));
    print_library("cuBLASLt", json_object_get(cuda, "cublaslt"));
    print_library("cuDNN", json_object_get(cuda, "cudnn"));
    print_library("NCCL", json_object_get(cuda, "nccl"));
    if (has(cuda, "error")) {
        (void)printf("%-14s none: %s\n", "gpus", text(cuda, "error"));
    }
}

static const char *cover_text(const json_t *is_covered)
{
    return json_is_true(is_covered)    ? "this build has code for it"
           : json_is_false(is_covered) ? "NOT covered by this build: configure "
                                         "with its number in "
                                         "SL_CUDA_ARCHITECTURES"
                                       : "built for the GPUs of one machine";
}

/* Of a GPU that CUDA shows: its memory, and everybody's use. */
static void print_details(const json_t *gpu)
{
    const json_t *use = json_object_get(gpu, "use");
    char free_text[32], total_text[32], use_text[256];

    if (has(gpu, "error")) {
        (void)printf("%-14s cannot be used: %s\n", "", text(gpu, "error"));
    } else {
        sl_format_bytes((uint64_t)number(gpu, "free_bytes"), free_text,
                        sizeof(free_text));
        sl_format_bytes((uint64_t)number(gpu, "total_bytes"), total_text,
                        sizeof(total_text));
        (void)printf("%-14s %s of memory, %s free\n", "", total_text,
                     free_text);
    }
    if (has(gpu, "bus")) {
        (void)printf("%-14s bus %s", "", text(gpu, "bus"));
        if (has(gpu, "use")) {
            sl_gpu_use_text(use, use_text, sizeof(use_text));
            (void)printf(", %s", use_text);
        }
        (void)printf("\n");
    }
}

/* As CUDA sees it, or, in a build without CUDA, the driver alone. */
static void print_gpu(const json_t *gpu)
{
    const int index = (int)number(gpu, "index");
    char use_text[256];

    if (has(gpu, "compute_capability")) {
        (void)printf("gpu %-10d %s, compute capability %s: %s\n", index,
                     text(gpu, "name"), text(gpu, "compute_capability"),
                     cover_text(json_object_get(gpu, "is_covered")));
        print_details(gpu);
    } else if (has(gpu, "error")) {
        (void)printf("gpu %-10d cannot be asked: %s\n", index,
                     text(gpu, "error"));
    } else {
        sl_gpu_use_text(json_object_get(gpu, "use"), use_text,
                        sizeof(use_text));
        (void)printf("gpu %-10d %s, %s\n", index, text(gpu, "name"), use_text);
    }
}

static void print_gpus(const json_t *gpus)
{
    const json_t *gpu;
    size_t i;

    json_array_foreach(gpus, i, gpu)
    {
        print_gpu(gpu);
    }
}

/* How each GPU reaches the memory of each other. */
static void print_ways(const json_t *ways)
{
    const json_t *row, *way;
    size_t a, b;

    if (json_array_size(ways) < 2) {
        return;
    }
    (void)printf("%-14s", "gpu reaches");
    for (b = 0; b < json_array_size(ways); b++) {
        (void)printf(" %6d", (int)b);
    }
    (void)printf("\n");
    json_array_foreach(ways, a, row)
    {
        (void)printf("%13d ", (int)a);
        json_array_foreach(row, b, way)
        {
            (void)printf(" %6s",
                         json_is_null(way) ? "-" : json_string_value(way));
        }
        (void)printf("\n");
    }
}

void sl_doctor_print(const json_t *facts)
{
    const json_t *driver = json_object_get(facts, "nvidia_driver");

    print_machine(facts);
    print_driver(driver);
    print_cuda(json_object_get(facts, "cuda"), driver);
    print_gpus(json_object_get(facts, "gpus"));
    print_ways(json_object_get(facts, "gpu_ways"));
    (void)printf("\n");
    print_programs(json_object_get(facts, "programs"));
}
