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

static void parts_hash_as_the_whole(void **state)
{
    unsigned char data[3000];
    size_t part, i;

    (void)state;
    for (i = 0; i < sizeof(data); i++) {
        data[i] = (unsigned char)(i * 7 + i / 256);
    }
    for (part = 1; part <= sizeof(data); part = part * 3 + 1) {
        sl_hash_stream_t *stream = NULL;

        sl_assert_ok(sl_hash_stream_create(&stream));
        assert_true(sl_hash_stream_value(stream) == sl_hash("", 0, 0));
        for (i = 0; i < sizeof(data); i += part) {
            const size_t left = sizeof(data) - i;

            sl_hash_stream_add(stream, data + i, left < part ? left : part);
            sl_hash_stream_add(stream, NULL, 0);
        }
        assert_true(sl_hash_stream_value(stream) ==
                    sl_hash(data, sizeof(data), 0));
        sl_hash_stream_destroy(stream);
    }
    sl_hash_stream_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(empty_input_has_the_published_value),
        sl_unit_test(text_hashes_as_its_bytes),
        sl_unit_test(every_bit_and_the_seed_count),
        sl_unit_test(parts_hash_as_the_whole),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
