/* SPDX-License-Identifier: Apache-2.0 */
/* concat and flatten on a CUDA device. */
#include "tests/cuda/image_check.h"

static void flattened_agree(void **state)
{
    image_case_t c = {
        .type = "flatten", .n_inputs = 1, .dims = {{3, 17, 3, 5}}};
    image_case_t rows = {.type = "flatten",
                         .n_inputs = 1,
                         .n_dims = 3,
                         .dims = {{2, 5, 7}},
                         .layouts = {SL_LAYOUT_PLAIN}};

    (void)state;
    image_check_all(c);
    image_check(&rows);
}

static void concatenated_agree(void **state)
{
    image_case_t c = {.type = "concat",
                      .n_inputs = 3,
                      .dims = {{2, 3, 4, 5}, {2, 1, 4, 5}, {2, 17, 4, 5}}};
    image_case_t rows = {.type = "concat",
                         .n_inputs = 2,
                         .n_dims = 3,
                         .dims = {{2, 3, 5}, {2, 3, 9}}};

    (void)state;
    image_check_all(c);
    image_check(&rows);
    c.dtype = SL_CUDA_BF16;
    c.layouts[0] = SL_LAYOUT_PLAIN;
    c.layouts[1] = SL_LAYOUT_CHANNELS_LAST;
    c.layouts[2] = SL_LAYOUT_PLAIN;
    image_check(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BED_TEST(flattened_agree),
        BED_TEST(concatenated_agree),
    };

    return !bed_has_device() ? 77 : cmocka_run_group_tests(tests, NULL, NULL);
}
