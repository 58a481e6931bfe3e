/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of many ranks: each writes its part, any other number of ranks,
 * stages and replicas on them goes on, with the same bits when the number of
 * replicas is the same; a rank that cannot write makes it fail on all. */
#include <signal.h>
#include <stdint.h>
#include <sys/resource.h>

#include "engine/repartition.h"
#include "tests/engine/checkpoint_bed.h"
#include "tests/engine/rank_bed.h"

enum {
    HALF = 2
};

typedef struct shape {
    int n_replicas, n_stages, n_ranks, n_devices, zero1;
} shape_t;

/* What the ranks do, and with which directory. */
typedef struct task {
    char dir[512];
    int first, last; /* steps; from a checkpoint unless first is 0 */
    int saves;
    int moves; /* layers, between the saves */
    int is_required;
    size_t limit_bytes; /* of a file, once all ranks can train; 0 = none */
    sl_status_t want;   /* of the save */
} task_t;

static int resume_member(bed_member_t *member, const task_t *task)
{
    const sl_checkpoint_run_t run = {
        .engine = member->engine, .world = member->world, .n_samples = 100};
    const sl_resume_t how = {.dir = task->dir};
    sl_checkpoint_info_t info;

    return MEMBER_OK(member, sl_checkpoint_resume(&run, &how, &info)) &&
           MEMBER_CHECK(member, sl_engine_n_steps(member->engine) ==
                                    (uint32_t)task->first);
}

static void save_member(bed_member_t *member, const task_t *task,
                        sl_saver_t *saver)
{
    sl_status_t status = sl_saver_save(saver, 1.0, 2.0);

    if (status >= 0) {
        status = sl_saver_wait(saver);
    }
    (void)MEMBER_CHECK(member, status == task->want);
}

/* Cuts that give the last stage all it can have, or the first one. */
static void move_layers(bed_member_t *member, int step)
{
    const int n = member->params.model->n_layers;
    const int n_stages = member->bed->run->n_stages;
    int cuts[RANKS_MAX + 1], k;

    cuts[0] = 0;
    for (k = 1; k <= n_stages; k++) {
        cuts[k] = k == n_stages || step % 2 != 0 ? n - (n_stages - k) : k;
    }
    (void)MEMBER_OK(member, sl_engine_repartition(member->engine, cuts, NULL));
}

/* Files are limited for the whole process, and what ranks share before they
 * train may be a larger one. */
static int limit_files(bed_member_t *member, const task_t *task)
{
    struct rlimit limit;
    double n = 1.0;

    if (task->limit_bytes == 0) {
        return 1;
    }
    if (!MEMBER_OK(member, sl_world_sum(member->world, &n, 1)) ||
        !MEMBER_CHECK(member, getrlimit(RLIMIT_FSIZE, &limit) == 0)) {
        return 0;
    }
    limit.rlim_cur = task->limit_bytes;
    return MEMBER_CHECK(member, setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

static void body(bed_member_t *member)
{
    const task_t *task = member->bed->args;
    sl_checkpoint_params_t params;
    sl_saver_t *saver = NULL;
    sl_step_report_t report;
    int i;

    if (!member_create(member) ||
        (task->first > 0 && !resume_member(member, task)) ||
        !limit_files(member, task)) {
        return;
    }
    if (task->saves) {
        const sl_checkpoint_run_t run = {
            .engine = member->engine, .world = member->world, .n_samples = 100};

        sl_checkpoint_params_default(&params);
        params.dir = task->dir;
        params.is_required = task->is_required;
        params.program = "test";
        if (!MEMBER_OK(member, sl_saver_create(&params, &run, &saver))) {
            return;
        }
    }
    for (i = task->first; i < task->last; i++) {
        if (!MEMBER_OK(member,
                       sl_engine_step(member->engine, &member->bed->batches[i],
                                      &report)) ||
            (saver != NULL && !MEMBER_OK(member, sl_saver_boundary(saver)))) {
            break;
        }
        if (task->moves) {
            move_layers(member, i);
        }
        if (saver != NULL && i + 2 == task->last) {
            (void)MEMBER_OK(member, sl_saver_save(saver, 1.0, 2.0));
        }
    }
    if (saver != NULL) {
        save_member(member, task, saver);
    }
    sl_saver_destroy(saver);
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
}

static fixture_run_t shaped(const fixture_run_t *base, const shape_t *shape)
{
    fixture_run_t run = *base;

    run.n_replicas = shape->n_replicas;
    run.n_stages = shape->n_stages;
    run.n_devices = shape->n_devices;
    run.zero1 = shape->zero1;
    return run;
}

static void run_task(const fixture_run_t *base, const shape_t *shape,
                     const task_t *task, uint64_t want)
{
    static rank_bed_t bed;
    const fixture_run_t run = shaped(base, shape);
    const char *log;
    int r;

    ranks_run(&bed, &run, shape->n_ranks, task->last, body, task);
    log = sl_test_log_take();
    /* a save that had to wait has said so */
    assert_true(task->want != SL_OK || log[0] == '\0' ||
                strncmp(log, "training waits: ", 16) == 0);
    for (r = 0; want != 0 && r < shape->n_ranks; r++) {
        if (bed.members[r].result.hash != want) {
            (void)fprintf(stderr,
                          "replicas %d stages %d ranks %d zero1 %d, rank %d\n",
                          shape->n_replicas, shape->n_stages, shape->n_ranks,
                          shape->zero1, r);
            fail();
        }
    }
}

/* From each shape to each of the same number of replicas. */
static void check_shapes(const fixture_run_t *base, const shape_t *shapes,
                         size_t n, int moves)
{
    task_t task = {.want = SL_OK, .is_required = 1};
    fixture_run_t alone = shaped(base, &shapes[0]);
    uint64_t want;
    size_t from, to;

    alone.n_stages = 1;
    alone.n_devices = 1;
    alone.zero1 = 0;
    alone.n_steps = 2 * HALF;
    want = fixture_train(&alone).hash;
    for (from = 0; from < n; from++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "r%d-from-%zu", shapes[0].n_replicas,
                       from);
        (void)snprintf(task.dir, sizeof(task.dir), "%s", bed_path(name));
        task.first = 0;
        task.last = HALF;
        task.saves = 1;
        task.moves = moves;
        run_task(base, &shapes[from], &task, 0);
        task.moves = 0;
        task.first = HALF;
        task.last = 2 * HALF;
        task.saves = 0;
        for (to = 0; to < n; to++) {
            run_task(base, &shapes[to], &task, want);
        }
    }
}

static void test_stages_on_ranks(void **state)
{
    static const shape_t shapes[] = {
        {1, 2, 2, 1, 0}, {1, 1, 1, 1, 0}, {1, 4, 2, 2, 0}, {1, 3, 3, 1, 0}};
    fixture_run_t run = {.rows = 6, .n_micro = 3};

    (void)state;
    run.model = fixture_gpt();
    check_shapes(&run, shapes, sizeof(shapes) / sizeof(*shapes), 0);
    sl_model_destroy(run.model);
}

/* Layers go to other ranks while the saver is open, and while it writes. */
static void test_layers_move_between_saves(void **state)
{
    static const shape_t shapes[] = {
        {1, 2, 2, 1, 0}, {1, 4, 2, 2, 0}, {1, 3, 3, 1, 0}};
    fixture_run_t run = {.rows = 6, .n_micro = 3};

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.model = fixture_gpt();
    check_shapes(&run, shapes, sizeof(shapes) / sizeof(*shapes), 1);
    sl_model_destroy(run.model);
}

static void test_replicas_on_ranks(void **state)
{
    static const shape_t shapes[] = {{2, 1, 2, 1, 0},
                                     {2, 2, 4, 1, 1},
                                     {2, 2, 2, 1, 0},
                                     {2, 3, 1, 2, 1},
                                     {2, 1, 2, 1, 1}};
    fixture_run_t run = {.rows = 8, .n_micro = 2};

    (void)state;
    run.model = fixture_resnet();
    check_shapes(&run, shapes, sizeof(shapes) / sizeof(*shapes), 0);
    sl_model_destroy(run.model);
}

/* The state after loading, then a step: the replicas are compared in it. */
static void load_and_step(bed_member_t *member)
{
    const task_t *task = member->bed->args;
    sl_step_report_t report;

    if (!member_create(member) || !resume_member(member, task)) {
        return;
    }
    (void)MEMBER_OK(member,
                    sl_engine_state_hash(member->engine, &member->result.hash));
    (void)MEMBER_OK(member, sl_engine_step(member->engine,
                                           &member->bed->batches[task->first],
                                           &report));
}

/* Other numbers of replicas have the same state, and rank 0 says that it will
 * not go on with the same bits. */
static void test_other_numbers_of_replicas(void **state)
{
    static const shape_t from = {2, 2, 4, 1, 1};
    static const shape_t to[] = {{1, 1, 1, 1, 0},
                                 {1, 3, 3, 1, 0},
                                 {3, 1, 3, 1, 0},
                                 {3, 2, 3, 2, 1},
                                 {4, 2, 2, 4, 1}};
    static rank_bed_t bed;
    fixture_run_t run = {.rows = 8, .n_micro = 2};
    task_t task = {.last = HALF, .saves = 1, .is_required = 1};
    char want[64];
    uint64_t saved;
    size_t i;
    int r;

    (void)state;
    sl_optimizer_params_default(&run.optimizer);
    run.optimizer.kind = SL_OPTIMIZER_ADAMW;
    run.optimizer.lr = 0.01;
    run.model = fixture_resnet();
    (void)snprintf(task.dir, sizeof(task.dir), "%s", bed_path("c"));
    {
        const fixture_run_t shape = shaped(&run, &from);

        ranks_run(&bed, &shape, from.n_ranks, task.last, body, &task);
    }
    (void)sl_test_log_take();
    saved = bed.members[0].result.hash;
    task.first = HALF;
    for (i = 0; i < sizeof(to) / sizeof(*to); i++) {
        const fixture_run_t shape = shaped(&run, &to[i]);
        const char *log, *told;

        ranks_run(&bed, &shape, to[i].n_ranks, HALF + 1, load_and_step, &task);
        log = sl_test_log_take();
        (void)snprintf(want, sizeof(want),
                       "train.replicas is 2 there and %d here",
                       to[i].n_replicas);
        sl_assert_contains(log, "not with the same bits");
        told = strstr(log, want);
        assert_non_null(told);
        assert_null(strstr(told + 1, want));
        for (r = 0; r < to[i].n_ranks; r++) {
            assert_true(bed.members[r].result.hash == saved);
        }
    }
    sl_model_destroy(run.model);
}

static void test_shards_are_those_of_ranks(void **state)
{
    const shape_t shape = {1, 3, 3, 1, 0};
    task_t task = {.last = HALF, .saves = 1, .is_required = 1};
    sl_checkpoint_info_t *infos = NULL;
    fixture_run_t run = {.rows = 4, .n_micro = 2};
    size_t n = 0;

    (void)state;
    run.model = fixture_resnet();
    (void)snprintf(task.dir, sizeof(task.dir), "%s", bed_path("c"));
    run_task(&run, &shape, &task, 0);
    sl_assert_ok(sl_checkpoint_list(bed_path("c"), &infos, &n));
    assert_int_equal(n, 2);
    assert_int_equal(infos[0].n_shards, 3);
    assert_true(bed_exists("c/step-00000002/state-0002-0000.safetensors"));
    sl_assert_ok(sl_checkpoint_verify(bed_path("c"), infos[0].name, &infos[0]));
    free(infos);
    sl_model_destroy(run.model);
}

/* Rank 0's part is small enough, the others' are not. */
static void test_one_rank_cannot_write(void **state)
{
    const shape_t shape = {1, 3, 3, 1, 0};
    task_t task = {.last = HALF, .saves = 1, .is_required = 1};
    fixture_run_t run = {.rows = 4, .n_micro = 2};
    struct rlimit before;
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0;

    (void)state;
    (void)signal(SIGXFSZ, SIG_IGN);
    run.model = fixture_resnet();
    (void)snprintf(task.dir, sizeof(task.dir), "%s", bed_path("c"));
    task.last = 1;
    run_task(&run, &shape, &task, 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    task.limit_bytes = 26000;
    task.first = 1;
    task.last = 2;
    task.want = SL_ERR_IO;
    run_task(&run, &shape, &task, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    (void)sl_test_log_take();
    sl_assert_ok(sl_checkpoint_list(bed_path("c"), &infos, &n));
    assert_int_equal(n, 1);
    assert_string_equal(infos[0].name, "step-00000001");
    assert_false(bed_exists("c/writing-step-00000002"));
    free(infos);
    sl_model_destroy(run.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(test_stages_on_ranks),
        sl_unit_test(test_layers_move_between_saves),
        sl_unit_test(test_replicas_on_ranks),
        sl_unit_test(test_other_numbers_of_replicas),
        sl_unit_test(test_shards_are_those_of_ranks),
        sl_unit_test(test_one_rank_cannot_write),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
