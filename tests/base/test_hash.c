/* SPDX-License-Identifier: Apache-2.0 */
/* XXH3 against its published values. */
#include "base/hash.h"

#include <string.h>

#include "tests/support/sl_test.h"

static void empty_input_has_the_published_value(void **state)
{
    (void)state;
    assert_true(sl_hash("", 0, 0) == UINT64_C(0x2D06800538D394C2));
    assert_true(sl_hash(NULL, 0, 0) == UINT64_C(0x2D06800538D394C2));
}

static void text_hashes_as_its_bytes(void **state)
{
    (void)state;
    assert_true(sl_hash_text("sluice", 7) == sl_hash("sluice", 6, 7));
}

static void every_bit_and_the_seed_count(void **state)
{
    unsigned char data[300];
    uint64_t whole;
    size_t i;

    (void)state;
    memset(data, 0x5A, sizeof(data));
    whole = sl_hash(data, sizeof(data), 1);
    assert_true(whole != sl_hash(data, sizeof(data), 2));
    assert_true(whole != sl_hash(data, sizeof(data) - 1, 1));
    for (i = 0; i < sizeof(data) * 8; i++) {
        data[i / 8] ^= (unsigned char)(1u << i % 8);
        assert_true(whole != sl_hash(data, sizeof(data), 1));
        data[i / 8] ^= (unsigned char)(1u << i % 8);
    }
    assert_true(whole == sl_hash(data, sizeof(data), 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(empty_input_has_the_published_value),
        sl_unit_test(text_hashes_as_its_bytes),
        sl_unit_test(every_bit_and_the_seed_count),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
