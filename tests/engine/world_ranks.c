/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that are processes: the program that tests/engine/world_ranks.sh starts
 * under a launcher.
 *
 *   world_ranks all            everything that a link must do
 *   world_ranks kill|stop R    rank R dies or hangs in the middle of traffic
 *   world_ranks fail R         rank R has an error
 *   world_ranks away R         the same, while rank 0 computes and computes
 *   world_ranks huge           a message of more than 2 GiB
 *   world_ranks hosts          print where each rank is, and rank 0 where the
 *                              stages would be */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "engine/grid.h"
#include "engine/world/world_internal.h"
#include "tests/engine/world_bed.h"

static void check_large(sl_world_t *world, size_t n)
{
    const int rank = sl_world_rank(world);
    unsigned char *data = malloc(n);
    size_t i, n_wrong = 0;

    if (!BED_CHECK(data != NULL)) {
        return;
    }
    for (i = 0; i < n && rank == 0; i++) {
        data[i] = (unsigned char)(i * 31 + i / 1000);
    }
    if (rank == 0) {
        (void)BED_CHECK(sl_world_put(world, 1, data, n) == SL_OK);
    } else if (rank == 1) {
        (void)BED_CHECK(sl_world_get(world, 0, data, n) == SL_OK);
        for (i = 0; i < n; i++) {
            n_wrong += data[i] != (unsigned char)(i * 31 + i / 1000);
        }
        (void)BED_CHECK(n_wrong == 0);
    }
    free(data);
}

static void run_all(sl_world_t *world)
{
    bed_rank_t rank;
    uint64_t i;

    bed_collectives(world);
    check_large(world, 3000017);
    bed_rank_init(&rank, world, 60);
    bed_open(&rank, 5);
    for (i = 0; i < 3; i++) {
        (void)BED_CHECK(bed_traffic(&rank, i));
    }
    bed_close(&rank, 6);
    bed_rank_cleanup(&rank);
    bed_reopen(world, 10);
    (void)bed_aborts(world, 3, 150);
    if (sl_world_rank(world) == 0 && bed_n_faults() == 0) {
        (void)printf("%s ok\n", sl_world_link_name(world));
    }
}

static sl_status_t fail(void)
{
    sl_status_t status;

    SL_FAIL(status, SL_ERR_IO, out, "the disk is full");
out:
    return status;
}

/* Traffic until it ends; the victim's ends after a while. */
static int run_until_failure(sl_world_t *world, const char *mode, int is_victim)
{
    bed_rank_t rank;
    uint64_t i = 0;

    bed_rank_init(&rank, world, 5);
    bed_open(&rank, 1);
    while (bed_traffic(&rank, i)) {
        bed_sleep_us(1000);
        if (++i < 200 || !is_victim) {
            continue;
        }
        if (strcmp(mode, "kill") == 0) {
            (void)raise(SIGKILL);
        } else if (strcmp(mode, "stop") == 0) {
            (void)raise(SIGSTOP);
        } else {
            const sl_status_t status = fail();

            sl_world_abort(world, status, sl_last_error());
            break;
        }
    }
    (void)pthread_mutex_lock(&rank.lock);
    sl_debug("rank %d heard: %s", sl_world_rank(world), rank.detail);
    (void)pthread_mutex_unlock(&rank.lock);
    bed_close(&rank, 1);
    bed_rank_cleanup(&rank);
    return EXIT_FAILURE;
}

/* As in a job: rank 0 tells of failures, when it comes to it. */
static int run_away(sl_world_t *world, int is_victim)
{
    sl_fail_quiet_set(sl_world_rank(world) != 0);
    if (is_victim) {
        const sl_status_t status = fail();

        sl_world_abort(world, status, sl_last_error());
        return EXIT_FAILURE;
    }
    while (sl_world_rank(world) == 0) {
        bed_sleep_us(1000000);
    }
    return EXIT_FAILURE;
}

/* Of one replica with a stage a rank. */
static void print_grid(sl_world_t *world)
{
    sl_device_params_t params;
    sl_device_set_t *devices = NULL;
    sl_grid_t *grid = NULL;
    char text[512];

    sl_device_params_default(&params);
    params.spec = "cpu:1";
    params.n_threads = 1;
    if (BED_CHECK(sl_device_set_create(&params, &devices) == SL_OK) &&
        BED_CHECK(sl_grid_create(world, devices, &grid) == SL_OK) &&
        sl_world_rank(world) == 0) {
        (void)sl_grid_format(grid, 1, sl_world_size(world), text, sizeof(text));
        (void)printf("%s", text);
    }
    sl_grid_destroy(grid);
    sl_device_set_destroy(devices);
}

static void print_host(sl_world_t *world)
{
    int n = 0;
    const int local = sl_world_local_rank(world, &n);
    const int rank = sl_world_rank(world);

    (void)printf("rank %d of %d on %s, %d of %d there\n", rank,
                 sl_world_size(world), sl_world_host(world, rank), local, n);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "all";
    const int victim = argc > 2 ? atoi(argv[2]) : 0;
    sl_world_params_t params;
    sl_world_t *world = NULL;
    int code = EXIT_SUCCESS;

    sl_world_params_default(&params);
    params.heartbeat_ns = 100000000;
    if (strcmp(mode, "kill") == 0 || strcmp(mode, "stop") == 0) {
        params.dead_ns = 5000000000;
    }
    if (strcmp(mode, "all") == 0) {
        sl_world_hook_piece_bytes(1000);
    }
    if (sl_world_join(&params, &world) < 0 || world == NULL) {
        (void)fprintf(stderr, "no other ranks: %s\n", sl_last_error());
        return EXIT_FAILURE;
    }
    if (strcmp(mode, "all") == 0) {
        run_all(world);
        code = bed_n_faults() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    } else if (strcmp(mode, "huge") == 0) {
        check_large(world, 2300000000);
        code = bed_n_faults() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    } else if (strcmp(mode, "hosts") == 0) {
        print_host(world);
        print_grid(world);
        code = bed_n_faults() == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    } else if (strcmp(mode, "away") == 0) {
        code = run_away(world, sl_world_rank(world) == victim);
    } else {
        code = run_until_failure(world, mode, sl_world_rank(world) == victim);
    }
    sl_world_leave(world);
    return code;
}
