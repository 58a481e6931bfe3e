/* SPDX-License-Identifier: Apache-2.0 */
/* The view of the management library: of the one in fake_nvml/, or of none. */
#include <stdlib.h>
#include <string.h>

#include "scheduler/nvml.h"
#include "tests/support/sl_test.h"

#define GIB ((uint64_t)1 << 30)

static int is_fake(void)
{
    return getenv("SL_TESTS_FAKE_NVML") != NULL;
}

static sl_nvml_t *open_fake(const char *mode)
{
    sl_nvml_t *nvml = NULL;

    if (!is_fake()) {
        skip();
    }
    assert_int_equal(setenv("FAKE_NVML", mode, 1), 0);
    sl_assert_ok(sl_nvml_open(&nvml));
    return nvml;
}

static void it_tells_of_gpus_and_their_users(void **state)
{
    sl_nvml_device_t device;
    sl_nvml_t *nvml;

    (void)state;
    nvml = open_fake("");
    assert_string_equal(sl_nvml_driver(nvml), "580.65.06");
    assert_int_equal(sl_nvml_count(nvml), 2);
    sl_assert_ok(sl_nvml_device(nvml, 0, &device));
    assert_string_equal(device.name, "Fake GPU A");
    assert_string_equal(device.uuid, "GPU-aaaa");
    assert_string_equal(device.pci_id, "00000000:0A:00.0");
    assert_int_equal(device.busy_percent, 40);
    assert_int_equal(device.memory_busy_percent, 20);
    assert_true(device.total_bytes == 80 * GIB);
    assert_true(device.used_bytes == 6 * GIB);
    assert_int_equal(device.n_processes, 3);
    assert_int_equal(device.processes[1].pid, 200);
    assert_true(sl_nvml_others_bytes(&device, 100) == 3 * GIB);
    assert_true(sl_nvml_others_bytes(&device, 1) == 5 * GIB);
    assert_int_equal(device.n_links, 3);
    sl_assert_ok(sl_nvml_device(nvml, 1, &device));
    assert_int_equal(device.n_processes, 0);
    assert_int_equal(device.n_links, 0);
    sl_assert_status(sl_nvml_device(nvml, 2, &device), SL_ERR_INVALID_ARG);
    sl_nvml_close(nvml);
}

static void gpus_are_found_by_their_bus(void **state)
{
    sl_nvml_t *nvml;

    (void)state;
    nvml = open_fake("");
    assert_int_equal(sl_nvml_find(nvml, "0000:0B:00.0"), 1);
    assert_int_equal(sl_nvml_find(nvml, "0000:0C:00.0"), -1);
    assert_int_equal(sl_nvml_p2p(nvml, 0, 1), SL_NVML_P2P_PCI);
    assert_int_equal(sl_nvml_p2p(nvml, 1, 0), SL_NVML_P2P_NONE);
    assert_int_equal(sl_nvml_p2p(nvml, 0, 5), SL_NVML_P2P_UNKNOWN);
    sl_nvml_close(nvml);
}

static void what_is_not_told_is_said_so(void **state)
{
    sl_nvml_device_t device;
    sl_nvml_t *nvml;

    (void)state;
    nvml = open_fake("mute");
    assert_string_equal(sl_nvml_driver(nvml), "");
    sl_assert_ok(sl_nvml_device(nvml, 0, &device));
    assert_string_equal(device.name, "");
    assert_int_equal(device.busy_percent, -1);
    assert_true(device.total_bytes == 0);
    assert_int_equal(device.n_processes, -1);
    assert_true(sl_nvml_others_bytes(&device, 1) == 0);
    assert_int_equal(sl_nvml_p2p(nvml, 0, 1), SL_NVML_P2P_UNKNOWN);
    sl_nvml_close(nvml);

    nvml = open_fake("crowded");
    sl_assert_ok(sl_nvml_device(nvml, 0, &device));
    assert_int_equal(device.n_processes, 1000);
    assert_true(sl_nvml_others_bytes(&device, 1) == 0);
    sl_nvml_close(nvml);

    nvml = open_fake("lost");
    memset(&device, 0, sizeof(device));
    sl_assert_status(sl_nvml_device(nvml, 1, &device), SL_ERR_DEVICE);
    sl_assert_ok(sl_nvml_device(nvml, 0, &device));
    sl_nvml_close(nvml);
}

static void a_library_that_does_not_start_says_why(void **state)
{
    sl_nvml_t *nvml = NULL;

    (void)state;
    if (!is_fake()) {
        skip();
    }
    assert_int_equal(setenv("FAKE_NVML", "broken", 1), 0);
    sl_assert_status(sl_nvml_open(&nvml), SL_ERR_UNSUPPORTED);
    assert_null(nvml);
    sl_assert_contains(sl_last_error(), "version mismatch");
}

/* Where there is a driver it opens; else it says what is not there. */
static void without_the_library_it_is_said(void **state)
{
    sl_nvml_t *nvml = NULL;
    sl_status_t status;

    (void)state;
    if (is_fake()) {
        skip();
    }
    status = sl_nvml_open(&nvml);
    if (status == SL_OK) {
        assert_true(sl_nvml_count(nvml) >= 0);
        sl_nvml_close(nvml);
        return;
    }
    sl_assert_status(status, SL_ERR_UNSUPPORTED);
    assert_null(nvml);
    sl_assert_contains(sl_last_error(), "libnvidia-ml.so.1");
    sl_nvml_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(it_tells_of_gpus_and_their_users),
        sl_unit_test(gpus_are_found_by_their_bus),
        sl_unit_test(what_is_not_told_is_said_so),
        sl_unit_test(a_library_that_does_not_start_says_why),
        sl_unit_test(without_the_library_it_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
