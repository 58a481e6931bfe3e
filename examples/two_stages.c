/* SPDX-License-Identifier: Apache-2.0 */
/* A training program in C: a small network with a skip connection, in two
 * stages on two CPU devices. The same state comes out on one:
 *
 *     build/examples/two_stages 2
 *     build/examples/two_stages 1
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/sluice.h"

enum {
    N_STEPS = 40,
    BATCH_ROWS = 64,
    N_MICRO_BATCHES = 4,
    WIDTH = 128,
    MAX_STAGES = 7 /* as many as there are layers */
};

typedef struct training {
    sl_dataset_t *dataset;
    sl_loader_t *loader;
    sl_model_t *model;
    sl_device_set_t *devices;
    int cuts[MAX_STAGES + 1]; /* the engine borrows them */
    sl_engine_t *engine;
} training_t;

static sl_status_t open_data(training_t *t)
{
    const sl_loader_params_t order = {
        .split = SL_DATA_TRAIN, .batch_rows = BATCH_ROWS, .shuffle = 1};
    sl_data_params_t params;
    sl_status_t status;

    sl_data_params_default(&params);
    params.format = "synthetic_images";
    params.channels = 1;
    params.height = 16;
    params.width = 16;
    params.classes = 10;
    SL_TRY(status, sl_dataset_open(&params, &t->dataset), out);
    status = sl_loader_create(t->dataset, &order, &t->loader);
out:
    return status;
}

/* A layer of `type` behind `inputs`; `width` > 0 is its attribute "out". */
static sl_status_t add(sl_model_t *model, const char *type, int n_inputs,
                       const int *inputs, double width, int *index_p)
{
    const sl_attr_t out = {.name = "out", .number = width};
    sl_layer_spec_t spec = {.type = type,
                            .n_inputs = n_inputs,
                            .attrs = &out,
                            .n_attrs = width > 0 ? 1 : 0};

    if (n_inputs > 0) {
        memcpy(spec.inputs, inputs, (size_t)n_inputs * sizeof(*inputs));
    }
    return sl_model_add(model, &spec, index_p);
}

/* No inputs given: the layer before. */
static sl_status_t build_model(training_t *t)
{
    sl_tensor_desc_t data, target;
    sl_status_t status;
    int ends[2]; /* of the skip connection */

    sl_dataset_descs(t->dataset, &data, &target);
    SL_TRY(status, sl_model_create("skip", &data, &target, &t->model), out);
    SL_TRY(status, add(t->model, "flatten", 0, NULL, 0, NULL), out);
    SL_TRY(status, add(t->model, "linear", 0, NULL, WIDTH, &ends[0]), out);
    SL_TRY(status, add(t->model, "gelu", 0, NULL, 0, NULL), out);
    SL_TRY(status, add(t->model, "linear", 0, NULL, WIDTH, &ends[1]), out);
    SL_TRY(status, add(t->model, "add", 2, ends, 0, NULL), out);
    SL_TRY(status, add(t->model, "linear", 0, NULL, 10, NULL), out);
    status = add(t->model, "softmax_cross_entropy", 0, NULL, 0, NULL);
out:
    return status;
}

/* One stage a device, cut so that the slowest one is as fast as can be. */
static sl_status_t open_engine(training_t *t, int n_stages)
{
    sl_part_costs_t costs = {0};
    sl_part_problem_t problem = {.costs = &costs, .n_stages = n_stages};
    sl_device_params_t devices;
    sl_engine_params_t params;
    sl_part_speed_t speed;
    sl_status_t status;
    char spec[32];

    (void)snprintf(spec, sizeof(spec), "cpu:%d", n_stages);
    sl_device_params_default(&devices);
    devices.spec = spec;
    devices.n_threads = 1;
    SL_TRY(status, sl_device_set_create(&devices, &t->devices), out);
    sl_part_speed_default(&speed, 1);
    SL_TRY(status,
           sl_part_costs_analytic(t->model, BATCH_ROWS / N_MICRO_BATCHES,
                                  &speed, &costs),
           out);
    SL_TRY(status, sl_part_split(sl_part_find("dp"), &problem, t->cuts), out);

    sl_engine_params_default(&params);
    params.model = t->model;
    params.devices = t->devices;
    params.n_stages = n_stages;
    params.cuts = t->cuts;
    params.batch_rows = BATCH_ROWS;
    params.n_micro_batches = N_MICRO_BATCHES;
    params.schedule = SL_SCHEDULE_1F1B;
    params.optimizer.kind = SL_OPTIMIZER_ADAMW;
    params.optimizer.lr = 2e-4;
    status = sl_engine_create(&params, &t->engine);
out:
    sl_part_costs_cleanup(&costs);
    return status;
}

static sl_status_t train(training_t *t)
{
    sl_step_report_t report;
    sl_batch_t batch;
    sl_status_t status = SL_OK;
    uint64_t hash;
    int i;

    for (i = 0; i < N_STEPS; i++) {
        SL_TRY(status, sl_loader_next(t->loader, &batch), out);
        SL_TRY(status, sl_engine_step(t->engine, &batch, &report), out);
        if ((i + 1) % 10 == 0) {
            (void)printf("step %d  loss %.4f  bubble %.0f %%\n", i + 1,
                         report.loss, 100.0 * report.bubble);
        }
    }
    SL_TRY(status, sl_engine_state_hash(t->engine, &hash), out);
    (void)printf("%d stages  loss %.6f  state-hash %016" PRIx64 "\n",
                 sl_engine_n_stages(t->engine), report.loss, hash);
out:
    return status;
}

int main(int argc, char **argv)
{
    const int n_stages = argc > 1 ? atoi(argv[1]) : 2;
    training_t t = {0};
    sl_status_t status;

    if (n_stages < 1 || n_stages > MAX_STAGES) {
        (void)fprintf(stderr, "usage: two_stages [1..%d]\n", MAX_STAGES);
        return 2;
    }
    SL_TRY(status, open_data(&t), out);
    SL_TRY(status, build_model(&t), out);
    SL_TRY(status, open_engine(&t, n_stages), out);
    status = train(&t);
out:
    sl_engine_destroy(t.engine);
    sl_device_set_destroy(t.devices);
    sl_model_destroy(t.model);
    sl_loader_destroy(t.loader);
    sl_dataset_close(t.dataset);
    return status < 0 ? 1 : 0;
}
