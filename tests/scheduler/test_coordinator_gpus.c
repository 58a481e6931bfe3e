/* SPDX-License-Identifier: Apache-2.0 */
/* Devices of jobs and the GPUs they are on: one GPU under two names, two
 * under one name, several devices on one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/coordinator/coordinator.h"
#include "tests/support/sl_test.h"

#define SECOND_NS UINT64_C(1000000000)
#define MIB (UINT64_C(1) << 20)

/* A GPU, and what jobs divide of it. */
enum {
    GPU_MIB = 1024,
    ROOM_MIB = 896
};

typedef struct bed {
    sl_coord_t *coord;
    sl_coord_snapshot_t seen;
    sl_coord_decisions_t decisions;
    /* what each device was told the time before; 0 = nothing */
    uint64_t before[SL_COORD_MAX_JOBS][SL_CONTROL_MAX_DEVICES];
} bed_t;

static bed_t *make_bed(const char *policy)
{
    bed_t *bed = calloc(1, sizeof(*bed));
    sl_coord_params_t params;

    assert_non_null(bed);
    sl_coord_params_default(&params);
    params.policy = policy;
    sl_assert_ok(sl_coord_create(&params, &bed->coord));
    bed->seen.now_ns = 100 * SECOND_NS;
    return bed;
}

static void free_bed(bed_t *bed)
{
    sl_coord_destroy(bed->coord);
    free(bed);
}

static sl_coord_job_t *add_job(bed_t *bed, const char *name,
                               sl_job_class_t job_class, sl_job_state_t state)
{
    sl_coord_job_t *job = &bed->seen.jobs[bed->seen.n_jobs];

    memset(bed->before[bed->seen.n_jobs++], 0, sizeof(bed->before[0]));
    memset(job, 0, sizeof(*job));
    (void)snprintf(job->id.text, sizeof(job->id.text), "%s-1-x", name);
    job->job_class = job_class;
    job->state = state;
    job->created_ns = bed->seen.now_ns + (uint64_t)bed->seen.n_jobs;
    return job;
}

/* `gpu`: "" = not known. An equal part of the GPU can be had. */
static sl_coord_device_t *add_device(sl_coord_job_t *job, const char *gpu,
                                     uint64_t part_mib, uint64_t wanted_mib)
{
    sl_coord_device_t *device = &job->devices[job->n_devices];

    memset(device, 0, sizeof(*device));
    (void)snprintf(device->name, sizeof(device->name), "cuda:%d",
                   job->n_devices++);
    (void)snprintf(device->gpu_id, sizeof(device->gpu_id), "%s", gpu);
    device->gpu_bytes = gpu[0] == '\0' ? 0 : GPU_MIB * MIB;
    device->capacity_bytes = part_mib * MIB;
    device->limit_bytes = part_mib * MIB;
    device->wanted_bytes = wanted_mib * MIB;
    device->share_percent = 100.0;
    device->achieved_percent = -1.0;
    device->manual_percent = -1.0;
    return device;
}

/* One that runs, on one GPU alone. */
static sl_coord_job_t *add_running(bed_t *bed, const char *name,
                                   sl_job_class_t job_class, const char *gpu,
                                   uint64_t held_mib)
{
    sl_coord_job_t *job = add_job(bed, name, job_class, SL_JOB_STATE_RUNNING);

    add_device(job, gpu, ROOM_MIB, 0)->held_bytes = held_mib * MIB;
    return job;
}

static void step(bed_t *bed)
{
    bed->seen.now_ns += SECOND_NS / 5;
    sl_coord_step(bed->coord, &bed->seen, &bed->decisions);
}

/* A job takes what it is told. */
static void obey_one(bed_t *bed, int i)
{
    sl_coord_job_t *job = &bed->seen.jobs[i];
    int d;

    if (bed->decisions.jobs[i].is_admitted &&
        job->state == SL_JOB_STATE_WAITING) {
        job->state = SL_JOB_STATE_RUNNING;
    }
    for (d = 0; d < job->n_devices; d++) {
        const sl_coord_gate_t *gate = &bed->decisions.jobs[i].gates[d];

        job->devices[d].share_percent = gate->share_percent;
        job->devices[d].limit_bytes = gate->limit_bytes;
    }
}

static void obey(bed_t *bed)
{
    int i;

    for (i = 0; i < bed->seen.n_jobs; i++) {
        obey_one(bed, i);
    }
}

static void settle(bed_t *bed)
{
    int n;

    for (n = 0; n < 4; n++) {
        step(bed);
        obey(bed);
    }
    step(bed);
}

static double share(const bed_t *bed, int i)
{
    return bed->decisions.jobs[i].gates[0].share_percent;
}

static uint64_t limit_mib(const bed_t *bed, int i, int d)
{
    return bed->decisions.jobs[i].gates[d].limit_bytes / MIB;
}

/* What the devices of a job, or of all (-1), may have of a GPU. */
static uint64_t sum_mib(const bed_t *bed, int job, const char *gpu)
{
    uint64_t sum = 0;
    int i, d;

    for (i = 0; i < bed->seen.n_jobs; i++) {
        for (d = 0; d < bed->seen.jobs[i].n_devices; d++) {
            if ((job < 0 || job == i) &&
                strcmp(bed->seen.jobs[i].devices[d].gpu_id, gpu) == 0) {
                sum += bed->decisions.jobs[i].gates[d].limit_bytes;
            }
        }
    }
    return (sum + MIB - 1) / MIB;
}

/* ---- who shares what ---- */

/* Different CUDA_VISIBLE_DEVICES: cuda:0 of both, on two GPUs. */
static void one_name_on_two_gpus_is_shared_by_nobody(void **state)
{
    static const char *const policies[] = {"static", "fair", "guarantee-first"};
    size_t p;

    (void)state;
    for (p = 0; p < 3; p++) {
        bed_t *bed = make_bed(policies[p]);

        (void)add_running(bed, "a", SL_JOB_CLASS_GUARANTEE, "GPU-a", 500);
        (void)add_running(bed, "b", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-b", 700);
        settle(bed);
        assert_true(share(bed, 0) == 100.0 && share(bed, 1) == 100.0);
        assert_false(bed->decisions.jobs[1].is_background);
        assert_int_equal(limit_mib(bed, 0, 0), ROOM_MIB);
        assert_int_equal(limit_mib(bed, 1, 0), ROOM_MIB);
        free_bed(bed);
    }
}

/* cuda:0 of one is cuda:1 of the other. */
static void one_gpu_under_two_names_is_shared(void **state)
{
    bed_t *bed = make_bed("static");
    sl_coord_job_t *job;

    (void)state;
    (void)add_running(bed, "a", SL_JOB_CLASS_GUARANTEE, "GPU-a", 100);
    job = add_running(bed, "b", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-b", 100);
    add_device(job, "GPU-a", ROOM_MIB, 0)->held_bytes = 100 * MIB;
    settle(bed);
    assert_true(share(bed, 0) == 50.0 && share(bed, 1) == 50.0);
    assert_int_equal(limit_mib(bed, 1, 0), ROOM_MIB);
    assert_true(limit_mib(bed, 0, 0) < 500 && limit_mib(bed, 1, 1) < 500);
    assert_in_range(sum_mib(bed, -1, "GPU-a"), ROOM_MIB - 2, ROOM_MIB);
    free_bed(bed);
}

/* Devices whose GPU is not told, as by older jobs, go by their names and by
 * what jobs report. */
static void without_ids_names_count(void **state)
{
    bed_t *bed = make_bed("static");

    (void)state;
    (void)add_running(bed, "a", SL_JOB_CLASS_GUARANTEE, "", 100);
    (void)add_running(bed, "b", SL_JOB_CLASS_OPPORTUNISTIC, "", 100);
    settle(bed);
    assert_true(share(bed, 0) == 50.0 && share(bed, 1) == 50.0);
    assert_in_range(sum_mib(bed, -1, ""), ROOM_MIB - 2, ROOM_MIB);
    free_bed(bed);
}

/* One that may be on either of two GPUs is given of neither what the others
 * could hold. */
static void a_device_that_may_be_anywhere_is_counted_everywhere(void **state)
{
    bed_t *bed = make_bed("static");

    (void)state;
    (void)add_running(bed, "a", SL_JOB_CLASS_GUARANTEE, "GPU-a", 100);
    (void)add_running(bed, "b", SL_JOB_CLASS_GUARANTEE, "GPU-b", 100);
    (void)add_running(bed, "c", SL_JOB_CLASS_OPPORTUNISTIC, "", 100);
    settle(bed);
    assert_true(share(bed, 2) == 50.0);
    assert_true(sum_mib(bed, -1, "GPU-a") + sum_mib(bed, -1, "GPU-b") +
                    sum_mib(bed, -1, "") <=
                ROOM_MIB);
    bed->seen.n_jobs = 2; /* it ends */
    settle(bed);
    assert_int_equal(limit_mib(bed, 0, 0), ROOM_MIB);
    assert_int_equal(limit_mib(bed, 1, 0), ROOM_MIB);
    free_bed(bed);
}

/* A CPU has no GPU, whatever a file says. */
static void cpu_devices_go_by_their_names(void **state)
{
    bed_t *bed = make_bed("static");
    int i;

    (void)state;
    (void)add_running(bed, "a", SL_JOB_CLASS_GUARANTEE, "GPU-a", 100);
    (void)add_running(bed, "b", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 100);
    (void)add_running(bed, "c", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 100);
    for (i = 0; i < 2; i++) {
        (void)snprintf(bed->seen.jobs[i].devices[0].name, 32, "cpu:%d", i);
        bed->seen.jobs[i].devices[0].gpu_bytes = 0;
    }
    settle(bed);
    assert_true(share(bed, 0) == 50.0 && share(bed, 1) == 50.0);
    assert_true(share(bed, 2) == 100.0);
    for (i = 0; i < 3; i++) {
        assert_int_equal(limit_mib(bed, i, 0), ROOM_MIB);
    }
    free_bed(bed);
}

/* ---- memory of several devices on a GPU ---- */

/* cuda:4 on one GPU, and cuda:2 of a second job: each job has about a half,
 * all six devices together the GPU. */
static void limits_add_up_within_the_gpu(void **state)
{
    bed_t *bed = make_bed("guarantee-first");
    sl_coord_job_t *job;
    int d;

    (void)state;
    job =
        add_job(bed, "four", SL_JOB_CLASS_OPPORTUNISTIC, SL_JOB_STATE_RUNNING);
    for (d = 0; d < 4; d++) {
        add_device(job, "GPU-a", ROOM_MIB / 4, 0)->held_bytes = 20 * MIB;
    }
    settle(bed);
    for (d = 0; d < 4; d++) {
        assert_int_equal(limit_mib(bed, 0, d), ROOM_MIB / 4);
    }
    job = add_job(bed, "two", SL_JOB_CLASS_OPPORTUNISTIC, SL_JOB_STATE_RUNNING);
    for (d = 0; d < 2; d++) {
        add_device(job, "GPU-a", ROOM_MIB / 2, 0)->held_bytes = 40 * MIB;
    }
    step(bed);
    /* the second has what it holds until the first has given back */
    assert_true(sum_mib(bed, 0, "GPU-a") < ROOM_MIB);
    settle(bed);
    assert_in_range(sum_mib(bed, -1, "GPU-a"), ROOM_MIB - 8, ROOM_MIB);
    assert_in_range(sum_mib(bed, 0, "GPU-a"), 430, 460);
    assert_in_range(sum_mib(bed, 1, "GPU-a"), 430, 460);
    free_bed(bed);
}

/* A limit set by hand is taken from what the others on that GPU divide. */
static void a_limit_by_hand_counts_on_its_gpu(void **state)
{
    bed_t *bed = make_bed("guarantee-first");
    sl_coord_job_t *job;

    (void)state;
    job = add_running(bed, "a", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 20);
    job->devices[0].manual_bytes = 600 * MIB;
    job = add_running(bed, "b", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-b", 20);
    (void)add_device(job, "GPU-a", ROOM_MIB, 0);
    settle(bed);
    assert_int_equal(limit_mib(bed, 0, 0), 600);
    assert_int_equal(limit_mib(bed, 1, 0), ROOM_MIB);
    assert_in_range(limit_mib(bed, 1, 1), 280, ROOM_MIB - 600);
    free_bed(bed);
}

/* Too much for the GPU: all devices of the guarantee job lack alike, and the
 * guest's keep their floor. */
static void a_guarantee_job_divides_what_it_gets(void **state)
{
    bed_t *bed = make_bed("guarantee-first");
    sl_coord_job_t *job;
    int d;

    (void)state;
    job = add_job(bed, "big", SL_JOB_CLASS_GUARANTEE, SL_JOB_STATE_RUNNING);
    for (d = 0; d < 2; d++) {
        add_device(job, "GPU-a", ROOM_MIB, 0)->held_bytes = 600 * MIB;
    }
    (void)add_running(bed, "guest", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 600);
    settle(bed);
    assert_int_equal(limit_mib(bed, 1, 0), 64);
    assert_int_equal(limit_mib(bed, 0, 0), (ROOM_MIB - 64) / 2);
    assert_int_equal(limit_mib(bed, 0, 1), (ROOM_MIB - 64) / 2);
    free_bed(bed);
}

/* The memory of a GPU is what it says, not what the last job found free. */
static void the_gpus_own_memory_counts(void **state)
{
    bed_t *bed = make_bed("guarantee-first");
    int i;

    (void)state;
    for (i = 0; i < 3; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "j%d", i);
        add_running(bed, name, SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 50)
            ->devices[0]
            .capacity_bytes = 290 * MIB;
    }
    settle(bed);
    for (i = 0; i < 3; i++) {
        assert_int_equal(limit_mib(bed, i, 0), 290);
    }
    free_bed(bed);
}

/* ---- admission ---- */

static void add_waiting(bed_t *bed, const char *name, sl_job_class_t job_class,
                        const char *gpu, int n_devices, uint64_t wanted_mib)
{
    sl_coord_job_t *job = add_job(bed, name, job_class, SL_JOB_STATE_WAITING);
    int d;

    for (d = 0; d < n_devices; d++) {
        (void)add_device(job, gpu, ROOM_MIB / (uint64_t)n_devices, wanted_mib);
    }
}

static void a_job_asks_for_all_its_devices_on_a_gpu(void **state)
{
    bed_t *bed = make_bed("guarantee-first");
    sl_coord_job_t *job =
        add_job(bed, "old", SL_JOB_CLASS_OPPORTUNISTIC, SL_JOB_STATE_RUNNING);

    (void)state;
    add_device(job, "GPU-a", 448, 0)->held_bytes = 300 * MIB;
    add_device(job, "GPU-a", 448, 0)->held_bytes = 300 * MIB;
    add_waiting(bed, "new", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 2, 200);
    settle(bed);
    assert_false(bed->decisions.jobs[1].is_admitted);
    assert_string_equal(bed->decisions.jobs[1].reason,
                        "waits for 400.00 MiB on the GPU of cuda:0: "
                        "296.00 MiB of 896.00 MiB are free");
    /* on another GPU there is room, under the same names, and a job that
     * comes later need not wait for the one that waits */
    add_waiting(bed, "there", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-b", 2, 400);
    add_waiting(bed, "behind", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 1, 10);
    step(bed);
    assert_true(bed->decisions.jobs[2].is_admitted);
    assert_false(bed->decisions.jobs[3].is_admitted);
    sl_assert_contains(bed->decisions.jobs[3].reason, "waits behind new-1-x");
    job->devices[0].held_bytes = 100 * MIB;
    obey(bed);
    step(bed);
    assert_true(bed->decisions.jobs[1].is_admitted);
    assert_true(sum_mib(bed, 1, "GPU-a") >= 400);
    free_bed(bed);
}

static void a_job_too_large_for_the_gpu_says_so(void **state)
{
    bed_t *bed = make_bed("guarantee-first");

    (void)state;
    add_waiting(bed, "large", SL_JOB_CLASS_GUARANTEE, "GPU-a", 4, 300);
    add_waiting(bed, "small", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 1, 100);
    step(bed);
    assert_false(bed->decisions.jobs[0].is_admitted);
    sl_assert_contains(bed->decisions.jobs[0].reason,
                       "needs 1.17 GiB on the GPU of cuda:0, which has "
                       "896.00 MiB");
    assert_true(bed->decisions.jobs[1].is_admitted);
    free_bed(bed);
}

/* Guests on the GPU shrink for a guarantee job, others do not. */
static void guests_of_that_gpu_shrink(void **state)
{
    bed_t *bed = make_bed("guarantee-first");

    (void)state;
    (void)add_running(bed, "here", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 800);
    (void)add_running(bed, "there", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-b", 800);
    settle(bed);
    add_waiting(bed, "host", SL_JOB_CLASS_GUARANTEE, "GPU-a", 2, 300);
    step(bed);
    assert_false(bed->decisions.jobs[2].is_admitted);
    assert_true(limit_mib(bed, 0, 0) <= ROOM_MIB - 600);
    assert_int_equal(limit_mib(bed, 1, 0), ROOM_MIB);
    obey(bed);
    bed->seen.jobs[0].devices[0].held_bytes = 250 * MIB;
    settle(bed);
    assert_true(bed->decisions.jobs[2].is_admitted);
    assert_true(sum_mib(bed, 2, "GPU-a") >= 600);
    assert_true(sum_mib(bed, -1, "GPU-a") <= ROOM_MIB);
    free_bed(bed);
}

/* ---- any jobs ---- */

enum {
    N_GPUS = 3,
    MAX_JOBS = 6
};

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 8;
}

/* A job that sees some of the GPUs in an order of its own, with one to four
 * devices on equal runs of them. */
static void add_any(bed_t *bed, uint32_t *seed)
{
    const int first = (int)(next(seed) % N_GPUS);
    const int n_seen = 1 + (int)(next(seed) % N_GPUS);
    const int n = 1 + (int)(next(seed) % 4);
    sl_coord_job_t *job;
    char name[16], gpu[16];
    int d;

    (void)snprintf(name, sizeof(name), "any%u", (unsigned)next(seed));
    job = add_job(bed, name, (sl_job_class_t)(1 + next(seed) % 2),
                  SL_JOB_STATE_WAITING);
    for (d = 0; d < n; d++) {
        (void)snprintf(gpu, sizeof(gpu), "GPU-%d",
                       (first + (n <= n_seen ? d : d * n_seen / n)) % N_GPUS);
        (void)add_device(job, gpu, 1 + next(seed) % ROOM_MIB, next(seed) % 300);
    }
}

static void live(bed_t *bed, uint32_t *seed)
{
    int i, d;

    for (i = 0; i < bed->seen.n_jobs; i++) {
        sl_coord_job_t *job = &bed->seen.jobs[i];

        for (d = 0; d < job->n_devices && job->state == SL_JOB_STATE_RUNNING;
             d++) {
            sl_coord_device_t *device = &job->devices[d];

            device->held_bytes = device->limit_bytes / 100 * (next(seed) % 101);
            device->spilled_bytes = next(seed) % 3 == 0 ? 50 * MIB : 0;
        }
    }
    if (next(seed) % 4 == 0 && bed->seen.n_jobs < MAX_JOBS) {
        add_any(bed, seed);
    } else if (next(seed) % 5 == 0 && bed->seen.n_jobs > 0) {
        i = (int)(next(seed) % (uint32_t)bed->seen.n_jobs);
        bed->seen.n_jobs--;
        memmove(&bed->seen.jobs[i], &bed->seen.jobs[i + 1],
                (size_t)(bed->seen.n_jobs - i) * sizeof(bed->seen.jobs[0]));
        memmove(&bed->before[i], &bed->before[i + 1],
                (size_t)(bed->seen.n_jobs - i) * sizeof(bed->before[0]));
    }
}

/* What is promised of a GPU. */
typedef struct promise {
    uint64_t told; /* sum of what jobs are told now */
    uint64_t may;  /* or of what they may hold until they have read it */
    int is_raised; /* a job may have more than before */
} promise_t;

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void add_up(bed_t *bed, promise_t promises[N_GPUS])
{
    int i, d;

    memset(promises, 0, N_GPUS * sizeof(*promises));
    for (i = 0; i < bed->seen.n_jobs; i++) {
        const sl_coord_job_t *job = &bed->seen.jobs[i];

        for (d = 0; d < job->n_devices && bed->decisions.jobs[i].is_admitted;
             d++) {
            const sl_coord_device_t *device = &job->devices[d];
            const uint64_t told = bed->decisions.jobs[i].gates[d].limit_bytes;
            const uint64_t now =
                job->state == SL_JOB_STATE_RUNNING
                    ? larger(device->limit_bytes, bed->before[i][d])
                    : bed->before[i][d];
            promise_t *promise = &promises[device->gpu_id[4] - '0'];

            assert_in_range(told, 1, device->capacity_bytes);
            promise->told += told;
            promise->may += larger(told, now);
            promise->is_raised |= now > 0 && told > now;
            bed->before[i][d] = told;
        }
    }
}

/* Jobs come and go, grow and shrink, and read what they are told late: all
 * that they are told never adds up to more than a GPU has, and nobody is told
 * of memory that another one may still hold. */
static void no_gpu_is_ever_promised_twice(void **state)
{
    /* a byte a job, by which parts of the reserve are rounded */
    const uint64_t room = ROOM_MIB * MIB + MAX_JOBS;
    uint32_t seed = 4711;
    bed_t *bed = make_bed("guarantee-first");
    int round, i, g, n_full = 0, n_raised = 0;

    (void)state;
    for (round = 0; round < 20000; round++) {
        promise_t promises[N_GPUS];

        live(bed, &seed);
        step(bed);
        add_up(bed, promises);
        for (g = 0; g < N_GPUS; g++) {
            assert_true(promises[g].told <= room);
            assert_true(!promises[g].is_raised || promises[g].may <= room);
            n_full += promises[g].told > room - 50 * MIB;
            n_raised += promises[g].is_raised;
        }
        for (i = 0; i < bed->seen.n_jobs; i++) {
            if (next(&seed) % 3 != 0) {
                obey_one(bed, i);
            }
        }
    }
    assert_true(n_full > 1000 && n_raised > 1000); /* both are at stake */
    free_bed(bed);
}

/* What the files of many jobs say adds up to 2^64, which is not 0: there is no
 * room for one more. */
static void sums_do_not_wrap(void **state)
{
    bed_t *bed = make_bed("guarantee-first");
    int i, d;

    (void)state;
    for (i = 0; i < 33; i++) {
        char name[16];
        sl_coord_job_t *job;

        (void)snprintf(name, sizeof(name), "liar%d", i);
        job = add_job(bed, name, SL_JOB_CLASS_OPPORTUNISTIC,
                      SL_JOB_STATE_RUNNING);
        for (d = 0; d < (i < 32 ? 64 : 1); d++) {
            add_device(job, "GPU-a", ROOM_MIB, 0)->held_bytes =
                i < 32 ? SL_CONTROL_MAX_SEQUENCE : 2048;
        }
    }
    add_waiting(bed, "one", SL_JOB_CLASS_OPPORTUNISTIC, "GPU-a", 1, 10);
    step(bed);
    assert_false(bed->decisions.jobs[33].is_admitted);
    free_bed(bed);
}

/* The largest numbers that a file can have, on as many devices as there can
 * be, all on one GPU. */
static void the_largest_numbers_are_harmless(void **state)
{
    bed_t *bed = make_bed("guarantee-first");
    int i, d, n;

    (void)state;
    (void)add_running(bed, "honest", SL_JOB_CLASS_GUARANTEE, "GPU-b", 500);
    for (i = 1; i < SL_COORD_MAX_JOBS; i++) {
        char name[16];
        sl_coord_job_t *job;

        (void)snprintf(name, sizeof(name), "liar%d", i);
        job = add_job(bed, name, (sl_job_class_t)(i % SL_JOB_N_CLASSES),
                      i % 2 == 0 ? SL_JOB_STATE_WAITING : SL_JOB_STATE_RUNNING);
        for (d = 0; d < SL_CONTROL_MAX_DEVICES; d++) {
            sl_coord_device_t *device = add_device(job, "GPU-a", 0, 0);

            device->gpu_bytes = i % 3 == 0 ? SL_CONTROL_MAX_SEQUENCE : 1;
            device->capacity_bytes = device->limit_bytes =
                SL_CONTROL_MAX_SEQUENCE;
            device->wanted_bytes = device->held_bytes = device->spilled_bytes =
                SL_CONTROL_MAX_SEQUENCE;
        }
    }
    for (n = 0; n < 2; n++) {
        step(bed);
        assert_int_equal(limit_mib(bed, 0, 0), ROOM_MIB);
        assert_true(share(bed, 0) == 100.0);
        for (i = 1; i < bed->seen.n_jobs; i++) {
            for (d = 0; d < SL_CONTROL_MAX_DEVICES; d++) {
                assert_in_range(bed->decisions.jobs[i].gates[d].limit_bytes, 1,
                                SL_CONTROL_MAX_SEQUENCE);
            }
        }
        obey(bed);
    }
    free_bed(bed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(one_name_on_two_gpus_is_shared_by_nobody),
        sl_unit_test(one_gpu_under_two_names_is_shared),
        sl_unit_test(without_ids_names_count),
        sl_unit_test(a_device_that_may_be_anywhere_is_counted_everywhere),
        sl_unit_test(cpu_devices_go_by_their_names),
        sl_unit_test(limits_add_up_within_the_gpu),
        sl_unit_test(a_limit_by_hand_counts_on_its_gpu),
        sl_unit_test(a_guarantee_job_divides_what_it_gets),
        sl_unit_test(the_gpus_own_memory_counts),
        sl_unit_test(a_job_asks_for_all_its_devices_on_a_gpu),
        sl_unit_test(a_job_too_large_for_the_gpu_says_so),
        sl_unit_test(guests_of_that_gpu_shrink),
        sl_unit_test(no_gpu_is_ever_promised_twice),
        sl_unit_test(sums_do_not_wrap),
        sl_unit_test(the_largest_numbers_are_harmless),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
