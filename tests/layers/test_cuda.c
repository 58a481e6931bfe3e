/* SPDX-License-Identifier: Apache-2.0 */
/* Every layer type is made for CUDA devices with every type of activations
 * and in every layout that its inputs can have there. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>

#include "layers/layers_internal.h"
#include "tests/support/sl_test.h"

/* One input of a kind: its shape without the batch. */
typedef enum input {
    NONE,
    IMAGE,    /* [2, 8, 6, 6] in either layout */
    DATA,     /* a batch's image: plain f32 */
    SEQUENCE, /* [2, 4, 24] */
    TOKENS,   /* [2, 4] */
    CLASSES,  /* of a sequence's places: [2, 4] */
    PIXELS    /* classes of an image's pixels: [2, 6, 6] */
} input_t;

typedef struct entry {
    const char *type;
    sl_attr_t attrs[3];
    input_t inputs[SL_LAYER_MAX_INPUTS];
    int makes_dtype; /* the output has the layer's type, not the input's */
} entry_t;

static const entry_t entries[] = {
    {"linear", {{.name = "out", .number = 8}}, {SEQUENCE}, 1},
    {"conv2d",
     {{.name = "out", .number = 8}, {.name = "kernel", .number = 3}},
     {IMAGE},
     1},
    {"conv2d",
     {{.name = "out", .number = 8}, {.name = "kernel", .number = 3}},
     {DATA},
     1},
    {"batch_norm", {{0}}, {IMAGE}, 0},
    {"batch_norm", {{.name = "relu", .number = 1}}, {IMAGE, IMAGE}, 0},
    {"layer_norm", {{0}}, {SEQUENCE}, 0},
    {"relu", {{0}}, {IMAGE}, 0},
    {"relu", {{0}}, {SEQUENCE}, 0},
    {"gelu", {{0}}, {IMAGE}, 0},
    {"gelu", {{0}}, {SEQUENCE}, 0},
    {"max_pool2d", {{.name = "kernel", .number = 2}}, {IMAGE}, 0},
    {"avg_pool2d", {{.name = "kernel", .number = 2}}, {IMAGE}, 0},
    {"global_avg_pool", {{0}}, {IMAGE}, 0},
    {"dropout", {{0}}, {IMAGE}, 0},
    {"dropout", {{0}}, {SEQUENCE}, 0},
    {"embedding",
     {{.name = "vocab", .number = 9}, {.name = "width", .number = 24}},
     {TOKENS},
     1},
    {"attention", {{.name = "heads", .number = 2}}, {SEQUENCE}, 0},
    {"add", {{0}}, {IMAGE, IMAGE}, 0},
    {"add", {{0}}, {SEQUENCE, SEQUENCE}, 0},
    {"concat", {{0}}, {IMAGE, IMAGE}, 0},
    {"concat", {{0}}, {SEQUENCE, SEQUENCE}, 0},
    {"upsample2d", {{0}}, {IMAGE}, 0},
    {"flatten", {{0}}, {IMAGE}, 0},
    {"softmax_cross_entropy", {{0}}, {IMAGE, PIXELS}, 0},
    {"softmax_cross_entropy", {{0}}, {SEQUENCE, CLASSES}, 0},
};

enum {
    N_ENTRIES = sizeof(entries) / sizeof(*entries)
};

static sl_tensor_desc_t desc_of(input_t input, sl_dtype_t dtype,
                                sl_layout_t layout)
{
    static const int64_t image[] = {2, 8, 6, 6}, sequence[] = {2, 4, 24};
    static const int64_t pixels[] = {2, 6, 6};
    sl_tensor_desc_t desc;

    switch (input) {
    case IMAGE:
        desc = sl_tensor_desc(dtype, 4, image);
        desc.layout = layout;
        return desc;
    case DATA:
        return sl_tensor_desc(SL_DTYPE_F32, 4, image);
    case SEQUENCE:
        return sl_tensor_desc(dtype, 3, sequence);
    case PIXELS:
        return sl_tensor_desc(SL_DTYPE_I32, 3, pixels);
    case NONE:
    case TOKENS:
    case CLASSES:
        break;
    }
    return sl_tensor_desc(SL_DTYPE_I32, 2, sequence);
}

static sl_layer_spec_t spec_of(const entry_t *entry)
{
    sl_layer_spec_t spec = {.type = entry->type, .attrs = entry->attrs};

    while (spec.n_attrs < 3 && entry->attrs[spec.n_attrs].name != NULL) {
        spec.n_attrs++;
    }
    while (spec.n_inputs < SL_LAYER_MAX_INPUTS &&
           entry->inputs[spec.n_inputs] != NONE) {
        spec.n_inputs++;
    }
    if (entry->inputs[0] == DATA) {
        spec.inputs[0] = SL_INPUT_DATA;
    }
    return spec;
}

static void check(const entry_t *entry, sl_dtype_t dtype, sl_layout_t layout,
                  int is_training)
{
    const sl_layer_spec_t spec = spec_of(entry);
    sl_tensor_desc_t on_cpu[SL_LAYER_MAX_INPUTS], in[SL_LAYER_MAX_INPUTS], out;
    sl_layer_t *layer = NULL;
    sl_layer_plan_t plan;
    int i;

    for (i = 0; i < spec.n_inputs; i++) {
        on_cpu[i] = desc_of(entry->inputs[i], SL_DTYPE_F32, SL_LAYOUT_PLAIN);
        in[i] = desc_of(entry->inputs[i], dtype, layout);
    }
    sl_assert_ok(sl_layer_create(&spec, 1, on_cpu, &layer, &out));
    sl_assert_ok(sl_layer_target(layer, SL_DEVICE_KIND_CUDA, dtype, in, &out));
    sl_assert_ok(sl_layer_plan_init(&plan, layer, SL_DEVICE_KIND_CUDA, 1,
                                    is_training, in));
    assert_true(sl_tensor_desc_is_equal(&plan.out, &out));
    if (!layer->ops->is_loss) {
        assert_int_equal(out.dtype, entry->makes_dtype ? dtype : in[0].dtype);
    }
    if (out.n_dims == 4) {
        assert_int_equal(out.layout, strcmp(entry->type, "conv2d") == 0
                                         ? SL_LAYOUT_CHANNELS_LAST
                                         : in[0].layout);
    }
    /* an evaluation keeps nothing */
    assert_true(is_training || plan.saved_bytes == 0);
    sl_layer_plan_cleanup(&plan);
    sl_layer_destroy(layer);
}

static void every_type_and_layout_has_a_plan(void **state)
{
    static const sl_dtype_t dtypes[] = {SL_DTYPE_F32, SL_DTYPE_BF16,
                                        SL_DTYPE_F16};
    size_t e, t;

    (void)state;
    for (e = 0; e < N_ENTRIES; e++) {
        for (t = 0; t < 3; t++) {
            int is_training;

            for (is_training = 0; is_training < 2; is_training++) {
                check(&entries[e], dtypes[t], SL_LAYOUT_PLAIN, is_training);
                if (entries[e].inputs[0] == IMAGE) {
                    check(&entries[e], dtypes[t], SL_LAYOUT_CHANNELS_LAST,
                          is_training);
                }
            }
        }
    }
}

static void every_layer_is_in_the_list(void **state)
{
    const sl_layer_ops_t *ops;
    size_t i, e;

    (void)state;
    for (i = 0; (ops = sl_layer_builtin(i)) != NULL; i++) {
        for (e = 0; e < N_ENTRIES; e++) {
            if (strcmp(entries[e].type, ops->name) == 0) {
                break;
            }
        }
        if (e == N_ENTRIES) {
            fail_msg("layer type %s is not tried", ops->name);
        }
    }
}

static int has_device(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        (void)fprintf(stderr, "no CUDA device\n");
        return 0;
    }
    return 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(every_type_and_layout_has_a_plan),
        sl_unit_test(every_layer_is_in_the_list),
    };

    return has_device() ? cmocka_run_group_tests(tests, NULL, NULL) : 77;
}
