/* SPDX-License-Identifier: Apache-2.0 */
/* The directory: what is kept, what is cleaned, and every damage that a disk
 * or a person can do to it. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>

#include "engine/checkpoint/checkpoint_internal.h"
#include "tests/engine/checkpoint_bed.h"

static const fixture_run_t small = {
    .n_devices = 1, .n_stages = 1, .rows = 4, .n_micro = 2};

static sl_model_t *model;

static void open_small(bed_t *bed)
{
    fixture_run_t run = small;

    run.model = model;
    bed_open(bed, &run);
}

/* Checkpoints of steps 1 .. n in "c". */
static void save_steps(bed_t *bed, uint32_t n, int64_t keep)
{
    sl_saver_t *saver = bed_saver(bed, bed_path("c"), keep, 0, 1);
    uint32_t i;

    for (i = 1; i <= n; i++) {
        (void)bed_train(bed, i);
        sl_assert_ok(sl_saver_save(saver, 1.0, (double)NAN));
        sl_assert_ok(sl_saver_wait(saver));
    }
    sl_saver_destroy(saver);
}

static size_t count_entries(const char *dir)
{
    DIR *d = opendir(bed_path(dir));
    struct dirent *entry;
    size_t n = 0;

    assert_non_null(d);
    while ((entry = readdir(d)) != NULL) {
        n += entry->d_name[0] != '.';
    }
    (void)closedir(d);
    return n;
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(bed_path(name), "w");

    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static void flip_bit(const char *name, long at)
{
    FILE *f = fopen(bed_path(name), "r+");
    int c;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    c = fgetc(f);
    assert_int_equal(fseek(f, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    (void)fputc(c ^ 4, f);
    assert_int_equal(fclose(f), 0);
}

static sl_status_t resume_any(bed_t *bed, sl_checkpoint_info_t *info)
{
    return bed_resume(bed, bed_path("c"), NULL, SL_RESUME_EXACT, info);
}

/* ---- what is kept ---- */

static void test_newest_are_kept(void **state)
{
    char name[SL_CHECKPOINT_NAME_BYTES];
    sl_store_t store;
    bed_t bed;

    (void)state;
    open_small(&bed);
    save_steps(&bed, 5, 2);
    assert_int_equal(count_entries("c"), 3); /* two, and latest */
    assert_true(bed_exists("c/step-00000004") && bed_exists("c/step-00000005"));
    sl_assert_ok(sl_store_open(bed_path("c"), &store));
    sl_store_latest(&store, name);
    assert_string_equal(name, "step-00000005");
    sl_store_close(&store);
    bed_close(&bed);
}

static void test_best_is_kept(void **state)
{
    static const double losses[] = {3.0, 1.0, 2.0, (double)NAN, 1.5};
    sl_checkpoint_info_t *infos = NULL;
    sl_saver_t *saver;
    size_t n = 0;
    bed_t bed;
    uint32_t i;

    (void)state;
    open_small(&bed);
    saver = bed_saver(&bed, bed_path("c"), 1, 1, 1);
    for (i = 0; i < 5; i++) {
        (void)bed_train(&bed, i + 1);
        sl_assert_ok(sl_saver_save(saver, 0.5, losses[i]));
        sl_assert_ok(sl_saver_wait(saver));
    }
    sl_saver_destroy(saver);
    sl_assert_ok(sl_checkpoint_list(bed_path("c"), &infos, &n));
    assert_int_equal(n, 2);
    assert_string_equal(infos[0].name, "step-00000005");
    assert_true(infos[0].is_latest && !infos[0].is_best);
    assert_string_equal(infos[1].name, "step-00000002");
    assert_true(infos[1].is_best && infos[1].validation_loss == 1.0);
    free(infos);
    bed_close(&bed);
}

/* A run that goes on from an older one: what it writes counts as newer than
 * later steps of the run before. */
static void test_order_is_that_of_writing(void **state)
{
    sl_checkpoint_info_t info;
    sl_saver_t *saver;
    bed_t bed;

    (void)state;
    open_small(&bed);
    save_steps(&bed, 4, 0);
    sl_assert_ok(bed_resume(&bed, bed_path("c"), "step-00000001",
                            SL_RESUME_EXACT, &info));
    (void)bed_train(&bed, 2);
    saver = bed_saver(&bed, bed_path("c"), 2, 0, 1);
    sl_assert_ok(sl_saver_save(saver, 1.0, (double)NAN));
    sl_saver_destroy(saver); /* waits */
    sl_assert_ok(resume_any(&bed, &info));
    assert_int_equal(info.step, 2);
    assert_true(bed_exists("c/step-00000002") && bed_exists("c/step-00000004"));
    assert_false(bed_exists("c/step-00000003"));
    bed_close(&bed);
}

/* ---- what ended runs leave ---- */

static void test_leftovers_are_removed(void **state)
{
    sl_checkpoint_info_t info;
    bed_t bed;

    (void)state;
    open_small(&bed);
    save_steps(&bed, 2, 0);
    /* being written, with a file of a writer that was killed */
    assert_int_equal(mkdir(bed_path("c/writing-step-00000003"), 0755), 0);
    write_text("c/writing-step-00000003/.sluice-1-0-0000", "half");
    write_text("c/writing-step-00000003/state-0000-0000.safetensors", "half");
    write_text("c/writing-latest", "step-0");
    /* being removed */
    assert_int_equal(rename(bed_path("c/step-00000001"),
                            bed_path("c/removed-step-00000001")),
                     0);
    /* moved aside for one of the same step that never came */
    assert_int_equal(rename(bed_path("c/step-00000002"),
                            bed_path("c/replaced-step-00000002")),
                     0);
    sl_saver_destroy(bed_saver(&bed, bed_path("c"), 0, 0, 1));
    sl_assert_contains(sl_test_log_take(), "step-00000002 was about to be");
    assert_int_equal(count_entries("c"), 2);
    sl_assert_ok(resume_any(&bed, &info));
    assert_int_equal(info.step, 2);
    bed_close(&bed);
}

/* Files of others stay, and so do directories that have them. */
static void test_foreign_files_stay(void **state)
{
    bed_t bed;

    (void)state;
    open_small(&bed);
    save_steps(&bed, 1, 0);
    write_text("c/notes.txt", "mine");
    assert_int_equal(mkdir(bed_path("c/step-7"), 0755), 0);
    assert_int_equal(mkdir(bed_path("c/writing-step-00000009"), 0755), 0);
    write_text("c/writing-step-00000009/thesis.tex", "mine");
    sl_saver_destroy(bed_saver(&bed, bed_path("c"), 1, 0, 1));
    sl_assert_contains(sl_test_log_take(), "cannot remove");
    assert_true(bed_exists("c/notes.txt") && bed_exists("c/step-7"));
    assert_true(bed_exists("c/writing-step-00000009/thesis.tex"));
    bed_close(&bed);
}

static void test_two_writers(void **state)
{
    sl_checkpoint_params_t params;
    sl_saver_t *first, *second = NULL;
    bed_t bed;

    (void)state;
    open_small(&bed);
    first = bed_saver(&bed, bed_path("c"), 0, 0, 1);
    sl_checkpoint_params_default(&params);
    params.dir = bed_path("c");
    params.program = "test";
    sl_assert_status(sl_saver_create(&params, &bed.checkpoint, &second),
                     SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "another process holds it");
    sl_saver_destroy(first);
    bed_close(&bed);
}

/* ---- damage: the one before is taken, with the reason ---- */

/* Steps 1 and 2 are there; step 2 was damaged. */
static void check_skipped(bed_t *bed, const char *why)
{
    sl_checkpoint_info_t info;

    sl_assert_ok(resume_any(bed, &info));
    assert_int_equal(info.step, 1);
    sl_assert_contains(sl_test_log_take(), why);
    /* asked for by name, it is refused */
    assert_true(bed_resume(bed, bed_path("c"), "step-00000002", SL_RESUME_EXACT,
                           &info) < 0);
    sl_assert_contains(sl_last_error(), why);
    assert_true(sl_checkpoint_verify(bed_path("c"), "step-00000002", &info) <
                0);
    sl_assert_contains(info.reason, why);
}

#define SHARD "c/step-00000002/state-0000-0000.safetensors"
#define MANIFEST "c/step-00000002/manifest.json"

static void test_damage(void **state)
{
    static const struct {
        const char *why;
        int kind;
    } damages[] = {{"it was cut off", 0},
                   {"it is damaged", 1},
                   {"it was changed or damaged", 2},
                   {"No such file", 3},
                   {"No such file", 4},
                   {"not one JSON object", 5},
                   {"it is a link", 6},
                   {"not a regular file", 7},
                   {"version 2 of the format", 8},
                   {"version 0 of the format", 9},
                   {"a link", 10},
                   {"of another step", 11},
                   {"not sluice-checkpoint", 12}};
    bed_t bed;
    size_t i;

    (void)state;
    open_small(&bed);
    for (i = 0; i < sizeof(damages) / sizeof(*damages); i++) {
        char command[1200];

        bed_close(&bed);
        open_small(&bed);
        (void)snprintf(command, sizeof(command), "rm -rf %s %s", bed_path("c"),
                       bed_path("away"));
        assert_int_equal(system(command), 0);
        save_steps(&bed, 2, 0);
        switch (damages[i].kind) {
        case 0:
            assert_int_equal(truncate(bed_path(SHARD), 700), 0);
            break;
        case 1:
            flip_bit(SHARD, -9);
            break;
        case 2:
            (void)snprintf(command, sizeof(command),
                           "sed -i 's/\"step\": 2/\"step\": 3/' %s",
                           bed_path(MANIFEST));
            assert_int_equal(system(command), 0);
            break;
        case 3:
            assert_int_equal(unlink(bed_path(SHARD)), 0);
            break;
        case 4:
            assert_int_equal(unlink(bed_path(MANIFEST)), 0);
            break;
        case 5:
            write_text(MANIFEST, "{\"format\": ");
            break;
        case 6:
            assert_int_equal(rename(bed_path(SHARD), bed_path("away")), 0);
            assert_int_equal(symlink(bed_path("away"), bed_path(SHARD)), 0);
            break;
        case 7:
            assert_int_equal(unlink(bed_path(SHARD)), 0);
            assert_int_equal(mkfifo(bed_path(SHARD), 0644), 0);
            break;
        case 8:
        case 9:
            (void)snprintf(command, sizeof(command),
                           "sed -i 's/\"version\": 1/\"version\": %d/' %s",
                           damages[i].kind == 8 ? 2 : 0, bed_path(MANIFEST));
            assert_int_equal(system(command), 0);
            break;
        case 10:
            assert_int_equal(
                rename(bed_path("c/step-00000002"), bed_path("away")), 0);
            assert_int_equal(
                symlink(bed_path("away"), bed_path("c/step-00000002")), 0);
            break;
        case 11:
            (void)snprintf(command, sizeof(command),
                           "cp -r %s/step-00000001/* "
                           "%s/step-00000002/",
                           bed_path("c"), bed_path("c"));
            assert_int_equal(system(command), 0);
            break;
        default:
            write_text(MANIFEST, "{\"weights\": [1, 2, 3]}");
            break;
        }
        check_skipped(&bed, damages[i].why);
    }
    bed_close(&bed);
}

static void test_no_good_one_is_an_error(void **state)
{
    sl_checkpoint_info_t info;
    bed_t bed;

    (void)state;
    open_small(&bed);
    save_steps(&bed, 2, 0);
    flip_bit(SHARD, -5);
    assert_int_equal(unlink(bed_path("c/step-00000001/manifest.json")), 0);
    sl_assert_status(resume_any(&bed, &info), SL_ERR_CORRUPT);
    assert_int_equal(unlink(bed_path(MANIFEST)), 0);
    sl_assert_status(resume_any(&bed, &info), SL_ERR_CORRUPT);
    bed_close(&bed);
}

/* A pointer that leads nowhere, or out, changes nothing. */
static void test_pointer_is_not_trusted(void **state)
{
    static const char *const texts[] = {"step-00000099\n", "../../etc/passwd\n",
                                        "", "step-00000001/../..\n",
                                        "\xff\xfe"};
    sl_checkpoint_info_t info;
    bed_t bed;
    size_t i;

    (void)state;
    open_small(&bed);
    save_steps(&bed, 2, 0);
    for (i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        const sl_resume_t resume = {.dir = bed_path("c"), .is_latest = 1};

        write_text("c/latest", texts[i]);
        sl_assert_ok(sl_checkpoint_resume(&bed.checkpoint, &resume, &info));
        assert_int_equal(info.step, 2);
    }
    write_text("c/latest", "step-00000001\n");
    {
        const sl_resume_t resume = {.dir = bed_path("c"), .is_latest = 1};

        sl_assert_ok(sl_checkpoint_resume(&bed.checkpoint, &resume, &info));
        assert_int_equal(info.step, 1);
    }
    bed_close(&bed);
}

/* ---- a disk that fails ---- */

/* Files may not grow past a size: as with a full disk, writes fail. */
static void limit_files(rlim_t bytes)
{
    struct rlimit limit;

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes == 0 ? limit.rlim_max : bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* Training goes on, nothing is left behind, and the next one is written. */
static void test_failed_write(void **state)
{
    sl_checkpoint_info_t info;
    sl_saver_stats_t stats;
    sl_saver_t *saver;
    bed_t bed;

    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    open_small(&bed);
    save_steps(&bed, 1, 0);
    saver = bed_saver(&bed, bed_path("c"), 0, 0, 0);
    (void)bed_train(&bed, 2);
    limit_files(500);
    sl_assert_ok(sl_saver_save(saver, 1.0, (double)NAN));
    sl_assert_ok(sl_saver_wait(saver));
    limit_files(0);
    sl_assert_contains(sl_test_log_take(),
                       "checkpoint step-00000002 was not written, training "
                       "goes on");
    assert_int_equal(count_entries("c"), 2);
    (void)bed_train(&bed, 3);
    sl_assert_ok(sl_saver_save(saver, 1.0, (double)NAN));
    sl_assert_ok(sl_saver_wait(saver));
    sl_saver_stats(saver, &stats);
    assert_int_equal(stats.n_written, 1);
    assert_int_equal(stats.n_failed, 1);
    sl_saver_destroy(saver);
    sl_assert_ok(resume_any(&bed, &info));
    assert_int_equal(info.step, 3);
    bed_close(&bed);
}

static void test_failed_write_that_is_required(void **state)
{
    sl_saver_t *saver;
    bed_t bed;

    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    open_small(&bed);
    saver = bed_saver(&bed, bed_path("c"), 0, 0, 1);
    (void)bed_train(&bed, 1);
    limit_files(500);
    sl_assert_ok(sl_saver_save(saver, 1.0, (double)NAN));
    sl_assert_status(sl_saver_wait(saver), SL_ERR_IO);
    limit_files(0);
    sl_assert_contains(sl_last_error(), "File too large");
    sl_saver_destroy(saver);
    bed_close(&bed);
}

/* The directory goes away, or is not writable, in the middle. */
static void test_lost_directory(void **state)
{
    sl_saver_t *saver;
    bed_t bed;

    (void)state;
    open_small(&bed);
    save_steps(&bed, 1, 0);
    saver = bed_saver(&bed, bed_path("c"), 0, 0, 0);
    assert_int_equal(rename(bed_path("c"), bed_path("moved")), 0);
    (void)bed_train(&bed, 2);
    sl_assert_ok(sl_saver_save(saver, 1.0, (double)NAN));
    sl_assert_ok(sl_saver_wait(saver));
    sl_assert_contains(sl_test_log_take(), "step-00000002 was not written");
    sl_saver_destroy(saver);
    (void)sl_test_log_take();
    bed_close(&bed);
}

static void test_read_only_directory(void **state)
{
    sl_checkpoint_params_t params;
    sl_saver_t *saver = NULL;
    bed_t bed;

    (void)state;
    if (geteuid() == 0) {
        skip(); /* root may write everywhere */
    }
    open_small(&bed);
    assert_int_equal(mkdir(bed_path("c"), 0555), 0);
    sl_checkpoint_params_default(&params);
    params.dir = bed_path("c");
    params.program = "test";
    sl_assert_status(sl_saver_create(&params, &bed.checkpoint, &saver),
                     SL_ERR_IO);
    sl_assert_contains(sl_last_error(), "Permission denied");
    bed_close(&bed);
}

static void test_names(void **state)
{
    static const char *const bad[] = {"",
                                      "step-",
                                      "step-1",
                                      "step-00000001x",
                                      "STEP-00000001",
                                      "step-0000000a",
                                      "step-000000001",
                                      "step-99999999999",
                                      "step-4294967296",
                                      "../step-00000001",
                                      "step-00000001/"};
    char dir[64], name[SL_CHECKPOINT_NAME_BYTES];
    uint32_t step = 0;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_false(sl_store_name_parse(bad[i], &step));
    }
    assert_true(sl_store_name_parse("step-4294967295", &step));
    assert_int_equal(step, UINT32_MAX);
    sl_assert_ok(sl_checkpoint_path_split("a/b/step-00000012//", dir,
                                          sizeof(dir), name));
    assert_string_equal(dir, "a/b");
    assert_string_equal(name, "step-00000012");
    sl_assert_ok(
        sl_checkpoint_path_split("/step-00000012", dir, sizeof(dir), name));
    assert_string_equal(dir, "/");
    sl_assert_ok(
        sl_checkpoint_path_split("step-00000012", dir, sizeof(dir), name));
    assert_string_equal(dir, ".");
    sl_assert_ok(sl_checkpoint_path_split("a/", dir, sizeof(dir), name));
    assert_string_equal(dir, "a");
    assert_string_equal(name, "");
}

static int make_model(void **state)
{
    (void)state;
    model = fixture_mlp();
    return 0;
}

static int destroy_model(void **state)
{
    (void)state;
    sl_model_destroy(model);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_newest_are_kept),
        sl_unit_test(test_best_is_kept),
        sl_unit_test(test_order_is_that_of_writing),
        sl_unit_test(test_leftovers_are_removed),
        sl_unit_test(test_foreign_files_stay),
        sl_unit_test(test_two_writers),
        sl_unit_test(test_damage),
        sl_unit_test(test_no_good_one_is_an_error),
        sl_unit_test(test_pointer_is_not_trusted),
        sl_unit_test(test_failed_write),
        sl_unit_test(test_failed_write_that_is_required),
        sl_unit_test(test_lost_directory),
        sl_unit_test(test_read_only_directory),
        sl_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, make_model, destroy_model);
}
