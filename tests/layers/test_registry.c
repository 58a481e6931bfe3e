/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "layers/layers.h"
#include "tests/support/sl_test.h"

static void check_attrs(const sl_attr_def_t *def, size_t attrs_bytes)
{
    const sl_attr_def_t *other;

    assert_non_null(def);
    for (; def->name != NULL; def++) {
        assert_non_null(def->brief);
        assert_true(def->offset < attrs_bytes);
        assert_true(def->kind != SL_ATTR_CHOICE || def->choices != NULL);
        if (def->kind == SL_ATTR_INT || def->kind == SL_ATTR_FLOAT) {
            assert_true(def->min < def->max);
            assert_true(def->is_required || (def->fallback >= def->min &&
                                             def->fallback <= def->max));
        }
        for (other = def + 1; other->name != NULL; other++) {
            assert_string_not_equal(def->name, other->name);
        }
    }
}

static void check_kernels(const sl_layer_kernels_t *kernels)
{
    assert_non_null(kernels);
    assert_int_equal(kernels->size, sizeof(sl_layer_kernels_t));
    assert_true(kernels->plan != NULL && kernels->forward != NULL);
    assert_true((kernels->param_pack == NULL) ==
                (kernels->param_unpack == NULL));
}

#if SL_HAVE_CUDA
/* What is to differentiate, and what is kept up, is the layer's. */
static void check_like(const sl_layer_kernels_t *cuda,
                       const sl_layer_kernels_t *cpu)
{
    check_kernels(cuda);
    assert_true((cuda->backward == NULL) == (cpu->backward == NULL));
    assert_true((cuda->finish_batch == NULL) == (cpu->finish_batch == NULL));
}
#endif

static void registry_is_complete(void **state)
{
    const sl_layer_ops_t *ops;
    size_t i, k;

    (void)state;
    for (i = 0; (ops = sl_layer_builtin(i)) != NULL; i++) {
        const sl_layer_kernels_t *cpu = ops->kernels[SL_DEVICE_KIND_CPU];

        assert_int_equal(ops->size, sizeof(sl_layer_ops_t));
        assert_true(ops->name != NULL && ops->name[0] != '\0');
        assert_true(ops->brief != NULL && ops->brief[0] != '\0');
        assert_true(ops->infer != NULL && ops->cost != NULL);
        assert_in_range(ops->n_inputs_min, 1, SL_LAYER_MAX_INPUTS);
        assert_in_range(ops->n_inputs_max, ops->n_inputs_min,
                        SL_LAYER_MAX_INPUTS);
        check_attrs(ops->attr_defs, ops->attrs_bytes);
        check_kernels(cpu);
#if SL_HAVE_CUDA
        check_like(ops->kernels[SL_DEVICE_KIND_CUDA], cpu);
#endif
        assert_ptr_equal(sl_layer_find(ops->name), ops);
        for (k = 0; k < i; k++) {
            assert_string_not_equal(sl_layer_builtin(k)->name, ops->name);
        }
    }
    assert_int_equal(i, 17);
    assert_null(sl_layer_find("no_such_type"));
    assert_null(sl_layer_find(""));
}

static void models_are_complete(void **state)
{
    const sl_model_ops_t *ops;
    size_t i;

    (void)state;
    for (i = 0; (ops = sl_model_ops_builtin(i)) != NULL; i++) {
        assert_true(ops->name != NULL && ops->brief != NULL);
        assert_non_null(ops->build);
        check_attrs(ops->attr_defs, ops->attrs_bytes);
        assert_ptr_equal(sl_model_ops_find(ops->name), ops);
    }
    assert_int_equal(i, 3);
    assert_null(sl_model_ops_find("no_such_model"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(registry_is_complete),
        sl_unit_test(models_are_complete),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
