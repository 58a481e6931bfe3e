/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of a training run. */
#include "cli/train_checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/launched.h"
#include "engine/checkpoint/checkpoint.h"

enum {
    PATH_BYTES = 2048
};

struct sl_train_checkpoint {
    const sl_job_t *job; /* borrowed */
    sl_checkpoint_run_t run;
    sl_saver_t *saver; /* NULL: nothing is saved */
    uint32_t saved_step;
    int is_evaluated; /* the one of saved_step has a validation loss */
    double best;      /* least validation loss so far; NaN = none */
};

/* ---- going on ---- */

/* An earlier run's checkpoints are neither gone over nor removed by chance. */
static sl_status_t check_fresh(const char *dir)
{
    sl_checkpoint_info_t *infos = NULL;
    sl_status_t status;
    size_t n = 0;

    status = sl_checkpoint_list(dir, &infos, &n);
    free(infos);
    if (status == SL_ERR_NOT_FOUND) {
        return SL_OK;
    }
    SL_TRY(status, status, out);
    if (n > 0) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s has %zu checkpoints of an earlier run: go on from them "
                "with --resume auto, or name another directory",
                dir, n);
    }
out:
    return status;
}

static sl_status_t choose(const sl_config_t *config, char *dir,
                          char name[SL_CHECKPOINT_NAME_BYTES],
                          sl_resume_t *resume)
{
    const char *from = config->resume;
    const int is_word =
        strcmp(from, "auto") == 0 || strcmp(from, "latest") == 0;
    sl_status_t status = SL_OK;

    memset(resume, 0, sizeof(*resume));
    resume->kind = (sl_resume_kind_t)config->resume_as;
    if (is_word && config->checkpoint_dir == NULL) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "resume %s: in which directory? Name it with --checkpoint DIR",
                from);
    }
    if (is_word) {
        resume->dir = config->checkpoint_dir;
        resume->is_latest = strcmp(from, "latest") == 0;
        return SL_OK;
    }
    SL_TRY(status, sl_checkpoint_path_split(from, dir, PATH_BYTES, name), out);
    resume->dir = dir;
    resume->name = name[0] == '\0' ? NULL : name;
out:
    return status;
}

static sl_status_t resume(sl_train_checkpoint_t *checkpoint, double *loss_p,
                          double *validation_loss_p)
{
    const sl_config_t *config = &checkpoint->job->config;
    char dir[PATH_BYTES], name[SL_CHECKPOINT_NAME_BYTES];
    sl_checkpoint_info_t info;
    sl_resume_t how;
    sl_status_t status;

    SL_TRY(status, choose(config, dir, name, &how), out);
    status = sl_checkpoint_resume(&checkpoint->run, &how, &info);
    if (status == SL_ERR_NOT_FOUND && strcmp(config->resume, "auto") == 0) {
        return SL_OK; /* the first run of this directory */
    }
    SL_TRY(status, status, out);
    if (sl_world_rank(checkpoint->run.world) == 0) {
        (void)printf("resumed from %s/%s, written %s%s\n", how.dir, info.name,
                     info.date,
                     how.kind == SL_RESUME_WEIGHTS ? ", weights only" : "");
        (void)fflush(stdout);
    }
    if (how.kind == SL_RESUME_WEIGHTS) {
        return SL_OK;
    }
    if (info.step > config->steps) {
        SL_FAIL(status, SL_ERR_CONFIG, out,
                "%s/%s is of step %" PRIu32 ", and train.steps is %lld",
                how.dir, info.name, info.step, (long long)config->steps);
    }
    /* whether to evaluate again is for all ranks to decide alike */
    SL_TRY(status,
           sl_world_broadcast(checkpoint->run.world, 0, &info.validation_loss,
                              sizeof(info.validation_loss)),
           out);
    *loss_p = info.loss;
    *validation_loss_p = info.validation_loss;
out:
    return status;
}

/* ---- saving ---- */

static void find_best(sl_train_checkpoint_t *checkpoint)
{
    sl_checkpoint_info_t *infos = NULL;
    size_t n = 0, i;

    checkpoint->best = (double)NAN;
    if (sl_checkpoint_list(checkpoint->job->config.checkpoint_dir, &infos, &n) <
        0) {
        return;
    }
    for (i = 0; i < n; i++) {
        if (infos[i].is_best) {
            checkpoint->best = infos[i].validation_loss;
        }
    }
    free(infos);
}

/* `sluice launch` counts progress, and may not see our directory. */
static void tell_launcher(const char *name)
{
    sl_launched_tell(SL_LAUNCH_REPORT_CHECKPOINT, name);
}

static sl_status_t open_saver(sl_train_checkpoint_t *checkpoint)
{
    const sl_config_t *config = &checkpoint->job->config;
    sl_checkpoint_params_t params;
    sl_status_t status;

    /* a limit on the size of files is an error to tell, not the end */
    (void)signal(SIGXFSZ, SIG_IGN);
    sl_checkpoint_params_default(&params);
    params.dir = config->checkpoint_dir;
    params.keep = config->checkpoint_keep;
    params.keeps_best = config->checkpoint_best;
    params.is_required = config->checkpoint_on_error == SL_CHECKPOINT_STOP;
    params.program = SL_VERSION;
    params.on_written = tell_launcher;
    SL_TRY(status,
           sl_saver_create(&params, &checkpoint->run, &checkpoint->saver), out);
    find_best(checkpoint);
    /* when to save is for all ranks to decide alike */
    status = sl_world_broadcast(checkpoint->run.world, 0, &checkpoint->best,
                                sizeof(checkpoint->best));
out:
    return status;
}

sl_status_t sl_train_checkpoint_open(const sl_job_t *job,
                                     sl_train_checkpoint_t **checkpoint_p,
                                     double *loss_p, double *validation_loss_p)
{
    const sl_config_t *config = &job->config;
    sl_train_checkpoint_t *checkpoint = calloc(1, sizeof(*checkpoint));
    sl_engine_params_t params;
    sl_status_t status = SL_OK;

    *checkpoint_p = checkpoint;
    if (checkpoint == NULL) {
        SL_FAIL(status, SL_ERR_NO_MEMORY, out, "checkpoint: no host memory");
    }
    sl_job_engine_params(job, &params);
    checkpoint->job = job;
    checkpoint->run.engine = job->engine;
    checkpoint->run.world = params.world;
    checkpoint->run.data = &config->data;
    checkpoint->run.n_samples = sl_dataset_count(job->dataset, SL_DATA_TRAIN);
    if (config->resume != NULL) {
        SL_TRY(status, resume(checkpoint, loss_p, validation_loss_p), out);
        checkpoint->is_evaluated = isfinite(*validation_loss_p);
    } else if (config->checkpoint_dir != NULL) {
        SL_TRY(status, check_fresh(config->checkpoint_dir), out);
    }
    checkpoint->saved_step = sl_engine_n_steps(job->engine);
    if (config->checkpoint_dir != NULL) {
        status = open_saver(checkpoint);
    }
out:
    return status;
}

static sl_status_t save(sl_train_checkpoint_t *checkpoint, double loss,
                        double validation_loss)
{
    checkpoint->saved_step = sl_engine_n_steps(checkpoint->job->engine);
    checkpoint->is_evaluated = isfinite(validation_loss);
    return sl_saver_save(checkpoint->saver, loss, validation_loss);
}

sl_status_t sl_train_checkpoint_step(sl_train_checkpoint_t *checkpoint,
                                     double loss, double validation_loss)
{
    const sl_config_t *config = &checkpoint->job->config;
    const uint32_t n = sl_engine_n_steps(checkpoint->job->engine);
    int is_due, is_best;
    sl_status_t status;

    if (checkpoint->saver == NULL) {
        return SL_OK;
    }
    SL_TRY(status, sl_saver_boundary(checkpoint->saver), out);
    is_due = config->checkpoint_every > 0 && n % config->checkpoint_every == 0;
    is_best =
        isfinite(validation_loss) && !(validation_loss >= checkpoint->best);
    if (is_best) {
        checkpoint->best = validation_loss;
    }
    if (is_due || (is_best && config->checkpoint_best)) {
        status = save(checkpoint, loss, validation_loss);
    }
out:
    return status;
}

sl_status_t sl_train_checkpoint_end(sl_train_checkpoint_t *checkpoint,
                                    double loss, double validation_loss)
{
    sl_saver_stats_t stats;
    sl_status_t status;

    if (checkpoint == NULL || checkpoint->saver == NULL) {
        return SL_OK;
    }
    if (checkpoint->saved_step != sl_engine_n_steps(checkpoint->job->engine) ||
        (isfinite(validation_loss) && !checkpoint->is_evaluated)) {
        SL_TRY(status, save(checkpoint, loss, validation_loss), out);
    }
    SL_TRY(status, sl_saver_wait(checkpoint->saver), out);
    sl_saver_stats(checkpoint->saver, &stats);
    sl_info("checkpoints: %" PRIu64 " written, %" PRIu64 " failed; training "
            "stood still %.1f ms to copy the state (%" PRIu64
            " bytes each) and %.1f ms until an earlier one was written; the "
            "writer took %.1f ms",
            stats.n_written, stats.n_failed, (double)stats.snapshot_ns * 1e-6,
            stats.snapshot_bytes, (double)stats.wait_ns * 1e-6,
            (double)stats.write_ns * 1e-6);
out:
    return status;
}

int sl_train_checkpoint_path(const sl_train_checkpoint_t *checkpoint,
                             char *path, size_t path_bytes)
{
    char name[SL_CHECKPOINT_NAME_BYTES];
    sl_saver_stats_t stats;

    if (checkpoint == NULL || checkpoint->saver == NULL) {
        return 0;
    }
    sl_saver_stats(checkpoint->saver, &stats);
    (void)snprintf(name, sizeof(name), "step-%08" PRIu32,
                   sl_engine_n_steps(checkpoint->job->engine));
    (void)snprintf(path, path_bytes, "%s/%s",
                   checkpoint->job->config.checkpoint_dir, name);
    return strcmp(stats.last, name) == 0;
}

sl_status_t sl_train_checkpoint_check(const sl_train_checkpoint_t *checkpoint)
{
    char path[PATH_BYTES];
    sl_saver_stats_t stats;
    sl_status_t status = SL_OK;

    if (checkpoint == NULL || checkpoint->saver == NULL) {
        return SL_OK;
    }
    sl_saver_stats(checkpoint->saver, &stats);
    if (stats.n_written + stats.n_failed == 0 || /* the one it began with */
        sl_train_checkpoint_path(checkpoint, path, sizeof(path))) {
        return SL_OK;
    }
    SL_FAIL(status, SL_ERR_IO, out,
            "all steps are done, but %s could not be written; the newest "
            "checkpoint of this run: %s",
            path, stats.last[0] == '\0' ? "none" : stats.last);
out:
    return status;
}

void sl_train_checkpoint_close(sl_train_checkpoint_t *checkpoint)
{
    if (checkpoint != NULL) {
        sl_saver_destroy(checkpoint->saver);
        free(checkpoint);
    }
}
