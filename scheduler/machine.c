/* SPDX-License-Identifier: Apache-2.0 */
/* Cores and memory of this process. Affinity and thread names are not in
 * POSIX: this file asks the C library for more than the rest of the code. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "scheduler/machine.h"

#include <errno.h>
#include <hwloc.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/hash.h"
#include "scheduler/scheduler.h"

enum {
    PATH_BYTES = 1024,
    LINE_BYTES = 2048,
    MAX_CPUS = 1 << 14
};

/* ---- control groups ---- */

typedef void (*cgroup_fn)(const char *folder, void *ctx);

/* The first line of folder/file. */
static int read_line(const char *folder, const char *file, char *line,
                     int line_bytes)
{
    char path[PATH_BYTES + 64];
    FILE *stream;
    int is_read;

    (void)snprintf(path, sizeof(path), "%s/%s", folder, file);
    stream = fopen(path, "re");
    if (stream == NULL) {
        return 0;
    }
    is_read = fgets(line, line_bytes, stream) != NULL;
    (void)fclose(stream);
    return is_read;
}

static int has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);

    for (; list != NULL; list = strchr(list, ',')) {
        list += *list == ',';
        if (strncmp(list, word, n) == 0 &&
            (list[n] == ',' || list[n] == '\0')) {
            return 1;
        }
    }
    return 0;
}

/* Call fn for the folder of a group and of each group above it, which may
 * have a tighter limit. */
static void walk_up(const char *mount, const char *group, cgroup_fn fn,
                    void *ctx)
{
    char folder[PATH_BYTES];
    const size_t mount_bytes = strlen(mount);
    char *slash;

    (void)snprintf(folder, sizeof(folder), "%s%s", mount, group);
    while ((slash = strrchr(folder, '/')) != NULL &&
           (size_t)(slash - folder) >= mount_bytes) {
        fn(folder, ctx);
        *slash = '\0';
    }
    fn(mount, ctx);
}

/* The groups of this process for a controller, version 2 and version 1. */
static void cgroup_each(const char *controller, cgroup_fn fn, void *ctx)
{
    char line[LINE_BYTES];
    FILE *stream = fopen("/proc/self/cgroup", "re");

    while (stream != NULL && fgets(line, sizeof(line), stream) != NULL) {
        char mount[64] = "/sys/fs/cgroup";
        char *list = strchr(line, ':');
        char *group = list == NULL ? NULL : strchr(list + 1, ':');

        if (group == NULL) {
            continue;
        }
        *group++ = '\0';
        list++;
        group[strcspn(group, "\n")] = '\0';
        if (*list != '\0') {
            if (!has_word(list, controller)) {
                continue;
            }
            (void)snprintf(mount, sizeof(mount), "/sys/fs/cgroup/%s",
                           controller);
        }
        walk_up(mount, strcmp(group, "/") == 0 ? "" : group, fn, ctx);
    }
    if (stream != NULL) {
        (void)fclose(stream);
    }
}

static void take_memory_limit(const char *folder, void *ctx)
{
    uint64_t *least = ctx;
    char line[64];
    uint64_t bytes;

    if ((read_line(folder, "memory.max", line, sizeof(line)) ||
         read_line(folder, "memory.limit_in_bytes", line, sizeof(line))) &&
        sscanf(line, "%" SCNu64, &bytes) == 1 && bytes < *least) {
        *least = bytes; /* "max" reads as no number */
    }
}

static void take_cpu_quota(const char *folder, void *ctx)
{
    double *least = ctx;
    char line[64];
    double quota = 0;
    double period = 0;
    int is_read = 0;

    if (read_line(folder, "cpu.max", line, sizeof(line))) {
        is_read = sscanf(line, "%lf %lf", &quota, &period) == 2;
    } else if (read_line(folder, "cpu.cfs_quota_us", line, sizeof(line)) &&
               sscanf(line, "%lf", &quota) == 1) {
        is_read = read_line(folder, "cpu.cfs_period_us", line, sizeof(line)) &&
                  sscanf(line, "%lf", &period) == 1;
    }
    if (is_read && quota > 0 && period > 0 && quota / period < *least) {
        *least = quota / period;
    }
}

int sl_machine_cpu_quota(void)
{
    double cores = (double)MAX_CPUS;

    cgroup_each("cpu", take_cpu_quota, &cores);
    if (cores >= (double)MAX_CPUS) {
        return 0;
    }
    return cores < 1 ? 1 : (int)cores;
}

static uint64_t available_bytes(void)
{
    char line[LINE_BYTES];
    FILE *stream = fopen("/proc/meminfo", "re");
    uint64_t kib = 0;

    while (stream != NULL && fgets(line, sizeof(line), stream) != NULL) {
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1) {
            break;
        }
    }
    if (stream != NULL) {
        (void)fclose(stream);
    }
    return kib > 0 ? kib * 1024
                   : (uint64_t)sysconf(_SC_PHYS_PAGES) *
                         (uint64_t)sysconf(_SC_PAGESIZE);
}

size_t sl_machine_memory_bytes(void)
{
    uint64_t bytes = available_bytes();

    cgroup_each("memory", take_memory_limit, &bytes);
    return (size_t)bytes;
}

/* ---- cores ---- */

/* One processing unit of each core: two kernel threads on one core's vector
 * units would only share them. In the order of the topology, so that
 * neighbours in the list share caches. */
static int cores_from_topology(int *cores, int n_max)
{
    hwloc_topology_t topology;
    hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
    hwloc_obj_t core = NULL;
    int n = 0;

    if (allowed == NULL || hwloc_topology_init(&topology) != 0) {
        hwloc_bitmap_free(allowed);
        return 0;
    }
    if (hwloc_topology_load(topology) == 0 &&
        hwloc_get_cpubind(topology, allowed, HWLOC_CPUBIND_THREAD) == 0) {
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE,
                                                  core)) != NULL) {
            if (!hwloc_bitmap_intersects(core->cpuset, allowed)) {
                continue;
            }
            if (cores != NULL && n < n_max) {
                hwloc_bitmap_t both = hwloc_bitmap_dup(core->cpuset);

                (void)hwloc_bitmap_and(both, both, allowed);
                cores[n] = hwloc_bitmap_first(both);
                hwloc_bitmap_free(both);
            }
            n++;
        }
    }
    hwloc_topology_destroy(topology);
    hwloc_bitmap_free(allowed);
    return n;
}

static int cores_from_mask(int *cores, int n_max)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    const size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    int n = 0;
    int cpu;

    if (set == NULL) {
        return 0;
    }
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set) == 0) {
        for (cpu = 0; cpu < MAX_CPUS; cpu++) {
            if (!CPU_ISSET_S((size_t)cpu, bytes, set)) {
                continue;
            }
            if (cores != NULL && n < n_max) {
                cores[n] = cpu;
            }
            n++;
        }
    }
    CPU_FREE(set);
    return n;
}

int sl_device_cores(int *cores, int n_max)
{
    int n = cores_from_topology(cores, n_max);

    if (n == 0) {
        n = cores_from_mask(cores, n_max);
    }
    if (n == 0) {
        if (cores != NULL && n_max > 0) {
            cores[0] = 0;
        }
        n = 1;
    }
    return n;
}

uint64_t sl_device_cores_hash(void)
{
    const size_t n_max = (size_t)sl_device_cores(NULL, 0);
    int *cores = calloc(n_max, sizeof(*cores));
    uint64_t hash = 0;

    if (cores != NULL) {
        const size_t n = (size_t)sl_device_cores(cores, (int)n_max);

        hash = sl_hash(cores, (n < n_max ? n : n_max) * sizeof(*cores), 0);
    }
    free(cores);
    return hash;
}

int sl_machine_bind_self(const int *cores, int n_cores)
{
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    const size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    int error;
    int i;

    if (set == NULL) {
        return ENOMEM;
    }
    CPU_ZERO_S(bytes, set);
    for (i = 0; i < n_cores; i++) {
        if (cores[i] < 0 || cores[i] >= MAX_CPUS) {
            CPU_FREE(set);
            return EINVAL;
        }
        CPU_SET_S((size_t)cores[i], bytes, set);
    }
    error = pthread_setaffinity_np(pthread_self(), bytes, set);
    CPU_FREE(set);
    return error;
}

void sl_machine_name_self(const char *name)
{
    char text[16]; /* the system's limit */

    (void)snprintf(text, sizeof(text), "%s", name);
    (void)pthread_setname_np(pthread_self(), text);
}

/* A line of /proc/cpuinfo with this name, onto `text`; 0 without one. */
static int find_cpu_line(FILE *file, const char *name, char *text,
                         size_t text_bytes)
{
    char line[256];

    rewind(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        const char *value = strchr(line, ':');

        if (strncmp(line, name, strlen(name)) == 0 && value != NULL) {
            value += 1 + strspn(value + 1, " \t");
            (void)snprintf(text, text_bytes, "%.*s", (int)strcspn(value, "\n"),
                           value);
            return 1;
        }
    }
    return 0;
}

void sl_device_cpu_model(char *text, size_t text_bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    struct utsname system;
    int is_found = 0;

    if (file != NULL) {
        is_found = find_cpu_line(file, "model name", text, text_bytes) ||
                   find_cpu_line(file, "CPU part", text, text_bytes);
        (void)fclose(file);
    }
    if (!is_found) {
        (void)snprintf(text, text_bytes, "%s",
                       uname(&system) == 0 ? system.machine : "unknown");
    }
}
