/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks of a job compare before it begins; here they are threads. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/ranks.h"
#include "tests/support/sl_test.h"

enum {
    N_RANKS = 3,
    PATH_BYTES = 4096
};

/* What a rank is started with, and how its checks end. */
typedef struct rank {
    sl_world_t *world;
    const char *text, *version;
    const char *override; /* or NULL */
    int n_threads;
    int64_t n_samples;
    uint64_t data_seed;
    sl_status_t status;
    char detail[1024];
    sl_device_params_t share;
} rank_t;

static const char config[] = "data: {format: synthetic_tokens}\n"
                             "model: {type: gpt, layers: 2}\n"
                             "train: {batch: 8, steps: 5}\n"
                             "devices: {threads: 1}\n";

static void set(rank_t *ranks, const char *text)
{
    int i;

    memset(ranks, 0, N_RANKS * sizeof(*ranks));
    for (i = 0; i < N_RANKS; i++) {
        ranks[i].text = text;
        ranks[i].version = "1.2.3";
        ranks[i].n_threads = 1;
        ranks[i].n_samples = 64;
    }
}

static sl_status_t check_config(rank_t *rank)
{
    char path[PATH_BYTES];
    sl_config_t read;
    sl_status_t status;

    (void)snprintf(path, sizeof(path), "%s/rank%d.yaml", sl_test_directory(),
                   sl_world_rank(rank->world));
    SL_TRY(status, sl_file_write(path, rank->text, strlen(rank->text)), out);
    SL_TRY(status,
           sl_config_open(path, &rank->override, rank->override != NULL, &read),
           out);
    status = sl_ranks_check_config(rank->world, rank->version, &read);
    sl_config_close(&read);
out:
    return status;
}

static sl_status_t check_run(rank_t *rank)
{
    sl_data_params_t params;
    sl_device_params_t device;
    sl_dataset_t *dataset = NULL;
    sl_device_set_t *devices = NULL;
    sl_status_t status;

    sl_data_params_default(&params);
    params.format = "synthetic_tokens";
    params.context = 8;
    params.classes = 16;
    params.n_samples = rank->n_samples;
    params.seed = rank->data_seed;
    SL_TRY(status, sl_dataset_open(&params, &dataset), out);
    sl_device_params_default(&device);
    device.n_threads = rank->n_threads;
    SL_TRY(status, sl_device_set_create(&device, &devices), out);
    SL_TRY(status, sl_ranks_check_run(rank->world, dataset, devices), out);
    rank->share = device;
    status = sl_ranks_share_host(rank->world, &rank->share);
out:
    sl_device_set_destroy(devices);
    sl_dataset_close(dataset);
    return status;
}

static void *rank_main(void *arg)
{
    rank_t *rank = arg;

    rank->status = check_config(rank);
    if (rank->status >= 0) {
        rank->status = check_run(rank);
    }
    if (rank->status < 0) {
        (void)snprintf(rank->detail, sizeof(rank->detail), "%s",
                       sl_last_error());
    }
    sl_world_leave(rank->world);
    return NULL;
}

static void run_ranks(rank_t *ranks, void *(*main_of_rank)(void *arg))
{
    sl_world_t *worlds[N_RANKS];
    sl_world_params_t params;
    pthread_t threads[N_RANKS];
    int i;

    sl_world_params_default(&params);
    sl_assert_ok(sl_world_local(N_RANKS, &params, worlds));
    (void)sl_test_directory(); /* made before there are several threads */
    for (i = 0; i < N_RANKS; i++) {
        ranks[i].world = worlds[i];
        assert_int_equal(
            pthread_create(&threads[i], NULL, main_of_rank, &ranks[i]), 0);
    }
    for (i = 0; i < N_RANKS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
}

static void run(rank_t *ranks)
{
    run_ranks(ranks, rank_main);
}

/* All ranks fail alike and name the rank; one message is logged. */
static void run_refused(rank_t *ranks, const char *text)
{
    const char *log;
    int i;

    run(ranks);
    for (i = 0; i < N_RANKS; i++) {
        assert_int_equal(ranks[i].status, SL_ERR_CONFIG);
        sl_assert_contains(ranks[i].detail, text);
        sl_assert_contains(ranks[i].detail, "rank 1 on host ");
    }
    log = sl_test_log_take();
    sl_assert_contains(log, text);
    assert_ptr_equal(strchr(log, '\n'), log + strlen(log) - 1);
}

static void equal_ranks_pass(void **state)
{
    rank_t ranks[N_RANKS];
    int i;

    (void)state;
    set(ranks, config);
    /* in another order, by option, and what is each rank's own */
    ranks[1].text = "devices: {threads: 2, use: \"cpu:1\", memory: 1GiB}\n"
                    "train: {steps: 5, batch: 8}\n"
                    "job: {name: other, class: guarantee}\n"
                    "model: {layers: 2, type: gpt}\n"
                    "data: {format: synthetic_tokens}\n";
    ranks[2].text = "data: {format: synthetic_tokens}\n"
                    "model: {type: gpt, layers: 2}\n"
                    "train: {batch: 9, steps: 5}\n";
    ranks[2].override = "train.batch=8";
    run(ranks);
    for (i = 0; i < N_RANKS; i++) {
        sl_assert_ok(ranks[i].status);
        assert_int_equal(ranks[i].share.local_rank, i);
        assert_int_equal(ranks[i].share.n_local, N_RANKS);
        assert_int_equal(ranks[i].share.n_on_host, N_RANKS);
    }
}

static void another_config_is_refused(void **state)
{
    rank_t ranks[N_RANKS];

    (void)state;
    set(ranks, config);
    ranks[1].override = "train.batch=16";
    run_refused(ranks, "another config than rank 0: 'train.batch=16' and not "
                       "'train.batch=8'");
    set(ranks, config);
    ranks[1].override = "train.schedule=1f1b";
    run_refused(ranks, "'train.schedule=1f1b' and not 'train.steps=5'");
    set(ranks, config);
    ranks[1].text = "data: {format: synthetic_tokens}\n"
                    "model: {type: gpt, layers: 2}\n";
    run_refused(ranks, "'' and not 'train.batch=8'");
    set(ranks, config);
    ranks[1].override = "model.dims=[1, 2, {a: b}]";
    ranks[2].override = "model.dims=[1, 2, {a: c}]";
    run_refused(ranks, "'model.dims.0=1' and not 'model.layers=2'");
}

static void another_version_is_refused(void **state)
{
    rank_t ranks[N_RANKS];

    (void)state;
    set(ranks, config);
    ranks[1].version = "1.2.4";
    run_refused(ranks, "runs sluice 1.2.4, rank 0 runs 1.2.3");
}

static void other_data_is_refused(void **state)
{
    rank_t ranks[N_RANKS];

    (void)state;
    set(ranks, config);
    ranks[1].n_samples = 63;
    run_refused(ranks, "has other data than rank 0: 63 + ");
    set(ranks, config);
    ranks[1].data_seed = 7;
    run_refused(ranks, "has other data than rank 0: as many samples");
}

static void another_number_of_threads_is_refused(void **state)
{
    rank_t ranks[N_RANKS];
    sl_device_params_t params;
    sl_device_set_t *devices = NULL;

    (void)state;
    sl_device_params_default(&params);
    params.n_threads = 2;
    if (sl_device_set_create(&params, &devices) < 0) {
        (void)sl_test_log_take();
        skip(); /* OpenMP allows one */
    }
    sl_device_set_destroy(devices);
    set(ranks, config);
    ranks[1].n_threads = 2;
    run_refused(ranks, "has 2 kernel threads a device, rank 0 has 1");
}

static const char *const *gpu_specs; /* of the ranks, by default */
static const int *gpu_choices;

static void *gpu_rank_main(void *arg)
{
    rank_t *rank = arg;
    const int r = sl_world_rank(rank->world);

    rank->status =
        sl_ranks_check_gpus(rank->world, gpu_specs[r], gpu_choices[r]);
    (void)snprintf(rank->detail, sizeof(rank->detail), "%s", sl_last_error());
    sl_world_leave(rank->world);
    return NULL;
}

static void check_gpus(const char *const *specs, const int *choices,
                       rank_t *ranks)
{
    gpu_specs = specs;
    gpu_choices = choices;
    run_ranks(ranks, gpu_rank_main);
}

static void a_gpu_that_is_gone_is_a_device_failure(void **state)
{
    static const char *const equal[] = {"cpu:1", "cpu:1", "cpu:1"};
    static const char *const gone[] = {"cuda:1", "cpu:1", "cuda:1"};
    static const int by_default[N_RANKS] = {0};
    static const int chosen[N_RANKS] = {0, 1, 0};
    rank_t ranks[N_RANKS];
    int i;

    (void)state;
    set(ranks, config);
    check_gpus(equal, by_default, ranks);
    for (i = 0; i < N_RANKS; i++) {
        sl_assert_ok(ranks[i].status);
    }
    check_gpus(gone, chosen, ranks);
    for (i = 0; i < N_RANKS; i++) {
        sl_assert_ok(ranks[i].status);
    }
    check_gpus(gone, by_default, ranks);
    for (i = 0; i < N_RANKS; i++) {
        assert_int_equal(ranks[i].status, SL_ERR_DEVICE);
        sl_assert_contains(ranks[i].detail, "rank 1 on host ");
        sl_assert_contains(ranks[i].detail,
                           SL_WORLD_DEVICE_FAILURE "no GPU is found, and 2 of "
                                                   "3 ranks have one");
    }
    sl_assert_contains(sl_test_log_take(), "has a device failure");
}

static void a_process_alone_needs_no_check(void **state)
{
    sl_device_params_t params;
    sl_config_t none;

    (void)state;
    memset(&none, 0, sizeof(none));
    sl_device_params_default(&params);
    sl_assert_ok(sl_ranks_check_config(NULL, "1", &none));
    sl_assert_ok(sl_ranks_check_gpus(NULL, "cpu:1", 0));
    sl_assert_ok(sl_ranks_share_host(NULL, &params));
    assert_int_equal(params.n_local, 1);
    sl_assert_ok(sl_ranks_check_run(NULL, NULL, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(equal_ranks_pass),
        sl_unit_test(another_config_is_refused),
        sl_unit_test(another_version_is_refused),
        sl_unit_test(other_data_is_refused),
        sl_unit_test(another_number_of_threads_is_refused),
        sl_unit_test(a_gpu_that_is_gone_is_a_device_failure),
        sl_unit_test(a_process_alone_needs_no_check),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
