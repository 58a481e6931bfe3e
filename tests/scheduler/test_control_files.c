/* SPDX-License-Identifier: Apache-2.0 */
/* The three JSON files as text: strict reading, round trips, noise; and noise
 * in AntMan's config. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/control.h"
#include "scheduler/control/antman.h"
#include "tests/support/sl_test.h"

static const char good[] =
    "{\"schema\": 1, \"sequence\": 7, \"ttl_ms\": 5000, \"floor_share\": 5,\n"
    " \"writer_token\": \"coordinator-81\", \"action\": \"\", "
    "\"class\": \"opportunistic\", \"reason\": \"a b\",\n"
    " \"devices\": {\"cpu:0\": {\"limit_bytes\": 1073741824, \"share\": 40},"
    " \"cpu:1\": {\"share\": 12.5},"
    " \"cpu:2\": {\"yield_to\": [\"big-7-a1:0\", \"big-7-a1:1\"]}}}\n";

static sl_status_t parse(const char *text, sl_control_order_t *order)
{
    return sl_control_order_parse(text, strlen(text), order);
}

static void a_good_order_is_read(void **state)
{
    sl_control_order_t order;

    (void)state;
    sl_assert_ok(parse(good, &order));
    assert_int_equal(order.n_yields, 2);
    assert_int_equal(order.sequence, 7);
    assert_int_equal(order.ttl_ms, 5000);
    assert_true(order.floor_share == 5.0);
    assert_string_equal(order.writer_token, "coordinator-81");
    assert_int_equal(order.action, SL_CONTROL_ACTION_NONE);
    assert_int_equal(order.job_class, SL_JOB_CLASS_OPPORTUNISTIC);
    assert_string_equal(order.reason, "a b");
    assert_int_equal(order.n_gates, 3);
    assert_string_equal(order.gates[0].name, "cpu:0");
    assert_int_equal(order.gates[0].limit_bytes, 1073741824);
    assert_true(order.gates[0].share == 40.0);
    assert_int_equal(order.gates[1].limit_bytes, 0);
    assert_true(order.gates[1].share == 12.5);
    assert_true(order.gates[2].share < 0.0);
}

static void what_is_absent_has_defaults(void **state)
{
    sl_control_order_t order;

    (void)state;
    sl_assert_ok(parse("{\"schema\":1,\"sequence\":9007199254740991}", &order));
    assert_true(order.sequence == SL_CONTROL_MAX_SEQUENCE);
    assert_int_equal(order.ttl_ms, 0);
    assert_true(order.floor_share == SL_CONTROL_FLOOR_SHARE);
    assert_int_equal(order.job_class, -1);
    assert_int_equal(order.n_gates, 0);
}

/* text, and a word of the reason */
static const struct {
    const char *text, *why;
} bad_orders[] = {
    {"", "line 1"},
    {"{", "line 1"},
    {"[]", "not one JSON object"},
    {"null", "expected"},
    {"{}", "schema"},
    {"{\"schema\":2,\"sequence\":1}", "schema"},
    {"{\"schema\":1}", "sequence"},
    {"{\"schema\":1,\"sequence\":0}", "sequence"},
    {"{\"schema\":1,\"sequence\":-1}", "sequence"},
    {"{\"schema\":1,\"sequence\":1.0}", "integer"},
    {"{\"schema\":1,\"sequence\":\"1\"}", "integer"},
    {"{\"schema\":1,\"sequence\":true}", "integer"},
    {"{\"schema\":1,\"sequence\":9007199254740992}", "sequence"},
    {"{\"schema\":1,\"sequence\":99999999999999999999}", "big integer"},
    {"{\"schema\":1,\"sequence\":010}", "line 1"},
    {"{\"schema\":1,\"sequence\":1} x", "end of file"},
    {"{\"schema\":1,\"sequence\":1}{}", "end of file"},
    {"{\"schema\":1,\"sequence\":1,\"sequence\":2}", "duplicate"},
    {"{\"schema\":1,\"sequence\":1,\"share\":5}", "unknown key \"share\""},
    {"{\"schema\":1,\"sequence\":1,\"ttl_ms\":-5}", "ttl_ms"},
    {"{\"schema\":1,\"sequence\":1,\"ttl_ms\":86400001}", "ttl_ms"},
    {"{\"schema\":1,\"sequence\":1,\"floor_share\":0}", "floor_share"},
    {"{\"schema\":1,\"sequence\":1,\"floor_share\":101}", "floor_share"},
    {"{\"schema\":1,\"sequence\":1,\"action\":\"run\"}", "action"},
    {"{\"schema\":1,\"sequence\":1,\"class\":\"best\"}", "class"},
    {"{\"schema\":1,\"sequence\":1,\"writer_token\":\"a/b\"}", "writer_token"},
    {"{\"schema\":1,\"sequence\":1,\"reason\":\"\\u001b[2J\"}", "reason"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":[]}", "devices"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":5}}", "cpu:0"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"../x\":{}}}", "device"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"\":{}}}", "device"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"x\":1}}}",
     "unknown"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"share\":101}}}",
     "share"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"share\":7000}}}",
     "share"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"share\":-0.1}}}",
     "share"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"share\":NaN}}}",
     "line 1"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"share\":1e999}}}",
     "overflow"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"share\":5,"
     "\"keep_share\":1}}}",
     "no boolean"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"keep_share\":"
     "true}}}",
     "without"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"limit_bytes\":0}}"
     "}",
     "limit_bytes"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"limit_bytes\":-1}"
     "}}",
     "limit_bytes"},
    {"{\"schema\":1,\"sequence\":1,\"devices\":{\"cpu:0\":{\"limit_bytes\":"
     "\"4GiB\"}}}",
     "limit_bytes"},
};

static void every_bad_order_is_refused_with_its_reason(void **state)
{
    sl_control_order_t order;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad_orders) / sizeof(*bad_orders); i++) {
        memset(&order, 0x5a, sizeof(order));
        sl_assert_status(parse(bad_orders[i].text, &order), SL_ERR_CORRUPT);
        sl_assert_contains(sl_last_error(), bad_orders[i].why);
        assert_int_equal(((unsigned char *)&order)[0], 0x5a); /* untouched */
    }
}

static void a_text_with_nul_is_refused(void **state)
{
    static const char text[] = "{\"schema\":1,\"sequence\":1}\0 ";
    sl_control_order_t order;

    (void)state;
    sl_assert_status(sl_control_order_parse(text, sizeof(text) - 1, &order),
                     SL_ERR_CORRUPT);
}

static void too_many_devices_are_refused(void **state)
{
    char text[8192];
    sl_control_order_t order;
    size_t n;
    int d;

    (void)state;
    n = (size_t)sprintf(text, "{\"schema\":1,\"sequence\":1,\"devices\":{");
    for (d = 0; d <= SL_CONTROL_MAX_DEVICES; d++) {
        n += (size_t)sprintf(text + n, "%s\"cpu:%d\":{}", d > 0 ? "," : "", d);
    }
    (void)sprintf(text + n, "}}");
    sl_assert_status(parse(text, &order), SL_ERR_CORRUPT);
}

static void every_cut_of_a_good_order_is_refused(void **state)
{
    const size_t n = strlen(good) - 1; /* without the newline */
    sl_control_order_t order;
    size_t i;

    (void)state;
    for (i = 0; i < n; i++) {
        sl_assert_status(sl_control_order_parse(good, i, &order),
                         SL_ERR_CORRUPT);
    }
}

static void an_order_survives_its_text(void **state)
{
    sl_control_order_t order, back;
    char *text = NULL;

    (void)state;
    sl_assert_ok(parse(good, &order));
    order.action = SL_CONTROL_ACTION_WAIT;
    order.gates[0].is_kept = order.gates[0].share >= 0.0;
    sl_assert_ok(sl_control_order_format(&order, &text));
    sl_assert_ok(parse(text, &back));
    free(text);
    assert_int_equal(back.action, SL_CONTROL_ACTION_WAIT);
    assert_int_equal(back.n_gates, order.n_gates);
    assert_memory_equal(back.gates, order.gates, 3 * sizeof(*order.gates));
    assert_string_equal(back.reason, order.reason);
    assert_true(back.floor_share == order.floor_share);
}

static void a_job_survives_its_text(void **state)
{
    sl_control_job_t job, back;
    char *text = NULL;

    (void)state;
    memset(&job, 0, sizeof(job));
    memset(&back, 0, sizeof(back));
    strcpy(job.name, "net.v2");
    job.pid = 4711;
    job.start_ticks = 99;
    job.job_class = SL_JOB_CLASS_GUARANTEE;
    job.created_ns = 12345678901;
    job.n_devices = 2;
    strcpy(job.devices[0].name, "cpu:0");
    job.devices[0].capacity_bytes = UINT64_C(1) << 40;
    job.devices[0].n_cores = 2;
    strcpy(job.devices[1].name, "cuda:1");
    job.devices[1].kind = SL_DEVICE_KIND_CUDA;
    strcpy(job.devices[1].gpu_id, "GPU-00ff17-12");
    job.devices[1].gpu_bytes = UINT64_C(80) << 30;
    job.devices[1].wanted_bytes = 17;
    job.devices[1].n_threads = 3;
    sl_assert_ok(sl_control_job_format(&job, &text));
    sl_assert_ok(sl_control_job_parse(text, strlen(text), &back));
    free(text);
    assert_memory_equal(&job, &back, sizeof(job));
    sl_assert_status(sl_control_job_parse("{\"schema\":1}", 12, &back),
                     SL_ERR_CORRUPT);
}

#define JOB_HEAD                                                               \
    "{\"schema\":1,\"name\":\"net\",\"pid\":4711,\"start_ticks\":9,"           \
    "\"class\":\"none\",\"created_ns\":5,\"devices\":[{\"name\":"
#define DEVICE_TAIL                                                            \
    ",\"capacity_bytes\":17,\"wanted_bytes\":0,\"cores\":0,\"threads\":1"
#define CUDA_DEVICE JOB_HEAD "\"cuda:0\",\"kind\":\"cuda\"" DEVICE_TAIL
#define CPU_DEVICE JOB_HEAD "\"cpu:0\",\"kind\":\"cpu\"" DEVICE_TAIL

static sl_status_t parse_job(const char *text, sl_control_job_t *job)
{
    return sl_control_job_parse(text, strlen(text), job);
}

/* The fields of a GPU are younger than the others, and each may be absent. */
static void a_gpu_is_optional(void **state)
{
    sl_control_job_t job;

    (void)state;
    sl_assert_ok(parse_job(CUDA_DEVICE "}]}", &job));
    assert_string_equal(job.devices[0].gpu_id, "");
    assert_int_equal(job.devices[0].gpu_bytes, 0);
    sl_assert_ok(parse_job(CUDA_DEVICE ",\"gpu\":\"0000:0A:00.0\"}]}", &job));
    assert_string_equal(job.devices[0].gpu_id, "0000:0A:00.0");
    assert_int_equal(job.devices[0].gpu_bytes, 0);
    sl_assert_ok(parse_job(
        CUDA_DEVICE ",\"gpu\":\"\",\"gpu_bytes\":9007199254740991}]}", &job));
    assert_string_equal(job.devices[0].gpu_id, "");
    assert_true(job.devices[0].gpu_bytes == SL_CONTROL_MAX_SEQUENCE);
    sl_assert_ok(parse_job(CPU_DEVICE ",\"core_list\":\"\"}]}", &job));
}

/* text, and a word of the reason */
static const struct {
    const char *text, *why;
} bad_gpus[] = {
    {CUDA_DEVICE ",\"gpu\":5}]}", "gpu"},
    {CUDA_DEVICE ",\"gpu\":null}]}", "gpu"},
    {CUDA_DEVICE ",\"gpu\":[\"GPU-1\"]}]}", "gpu"},
    {CUDA_DEVICE ",\"gpu\":\"GPU/../1\"}]}", "gpu"},
    {CUDA_DEVICE ",\"gpu\":\"GPU 1\"}]}", "gpu"},
    {CUDA_DEVICE ",\"gpu\":\"\\u001b[2J\"}]}", "gpu"},
    {CUDA_DEVICE ",\"gpu\":\"GPU-11111111-1111-1111-1111-111111111111-1234567\""
                 "}]}",
     "gpu"},
    {CUDA_DEVICE ",\"gpu\":\"GPU-1\",\"gpu\":\"GPU-2\"}]}", "duplicate"},
    {CUDA_DEVICE ",\"gpus\":\"GPU-1\"}]}", "unknown key \"gpus\""},
    {CUDA_DEVICE ",\"gpu_bytes\":0}]}", "gpu_bytes"},
    {CUDA_DEVICE ",\"gpu_bytes\":-1}]}", "gpu_bytes"},
    {CUDA_DEVICE ",\"gpu_bytes\":1.5}]}", "gpu_bytes"},
    {CUDA_DEVICE ",\"gpu_bytes\":9007199254740992}]}", "gpu_bytes"},
    {CUDA_DEVICE ",\"gpu_bytes\":\"80GiB\"}]}", "gpu_bytes"},
    {CPU_DEVICE ",\"gpu\":\"GPU-1\"}]}", "cpu:0 is no CUDA device"},
    {CPU_DEVICE ",\"gpu_bytes\":5}]}", "cpu:0 is no CUDA device"},
};

static void every_bad_gpu_is_refused_with_its_reason(void **state)
{
    sl_control_job_t job;
    size_t i;

    (void)state;
    for (i = 0; i < sizeof(bad_gpus) / sizeof(*bad_gpus); i++) {
        memset(&job, 0x5a, sizeof(job));
        sl_assert_status(parse_job(bad_gpus[i].text, &job), SL_ERR_CORRUPT);
        sl_assert_contains(sl_last_error(), bad_gpus[i].why);
        assert_int_equal(((unsigned char *)&job)[0], 0x5a); /* untouched */
    }
}

/* As many GPUs as there can be, with all that can be told of each, still make
 * a file that is read. */
static void the_largest_job_is_read(void **state)
{
    sl_control_job_t job, back;
    char *text = NULL;
    int d;

    (void)state;
    memset(&job, 0, sizeof(job));
    memset(&back, 0, sizeof(back));
    memset(job.name, 'n', sizeof(job.name) - 1);
    job.pid = INT32_MAX;
    job.start_ticks = job.created_ns = SL_CONTROL_MAX_SEQUENCE;
    job.n_devices = SL_CONTROL_MAX_DEVICES;
    for (d = 0; d < SL_CONTROL_MAX_DEVICES; d++) {
        sl_control_device_t *device = &job.devices[d];

        memset(device->name, 'd', sizeof(device->name) - 1);
        device->kind = SL_DEVICE_KIND_CUDA;
        device->capacity_bytes = device->wanted_bytes = device->gpu_bytes =
            SL_CONTROL_MAX_SEQUENCE;
        device->n_cores = device->n_threads = INT32_MAX;
        memset(device->core_list, '1', sizeof(device->core_list) - 1);
        memset(device->gpu_id, 'g', sizeof(device->gpu_id) - 1);
    }
    sl_assert_ok(sl_control_job_format(&job, &text));
    assert_true(strlen(text) < SL_CONTROL_FILE_BYTES);
    sl_assert_ok(parse_job(text, &back));
    free(text);
    assert_memory_equal(&job, &back, sizeof(job));
}

static void fill_status(sl_control_status_t *job)
{
    int i;

    memset(job, 0, sizeof(*job));
    job->sequence = 3;
    job->time_ns = 4;
    job->boundary_ns = 5;
    job->state = SL_JOB_STATE_SUSPENDED;
    job->job_class = SL_JOB_CLASS_OPPORTUNISTIC;
    strcpy(job->reason, "needs 2 GiB");
    job->step = 6;
    job->n_steps = 7;
    job->units_per_s = 1834.25;
    strcpy(job->unit, "tokens");
    job->last_us = 17420.5;
    job->median_us = 17388.5;
    job->p99_us = 20000.0;
    job->n_recent = SL_CONTROL_RECENT;
    for (i = 0; i < SL_CONTROL_RECENT; i++) {
        job->recent_us[i] = 100.0 + i;
    }
    job->accepted_sequence = 8;
    job->applied_sequence = 7;
    job->applied_ns = 10;
    job->applied_step = 11;
    strcpy(job->writer_token, "w");
    job->is_expired = 1;
    job->n_refused = 2;
    job->n_devices = SL_CONTROL_MAX_DEVICES;
    for (i = 0; i < SL_CONTROL_MAX_DEVICES; i++) {
        sl_control_device_status_t *device = &job->devices[i];

        (void)sprintf(device->name, "cpu:%d", i);
        device->limit_bytes = SL_CONTROL_MAX_SEQUENCE;
        device->held_bytes = 77;
        device->classes[SL_MEM_CLASS_STASH].host_bytes = 5;
        device->share_asked = 12.5;
        device->share_achieved = 12.25;
        device->n_ops = (uint64_t)i;
    }
}

/* The largest status also stays below the size that is read. */
static void a_status_survives_its_text(void **state)
{
    sl_control_status_t *job = calloc(2, sizeof(*job));
    char *text = NULL;

    (void)state;
    assert_non_null(job);
    fill_status(&job[0]);
    sl_assert_ok(sl_control_status_format(&job[0], &text));
    assert_true(strlen(text) < SL_CONTROL_FILE_BYTES);
    sl_assert_ok(sl_control_status_parse(text, strlen(text), &job[1]));
    assert_memory_equal(&job[0], &job[1], sizeof(job[0]));
    text[strlen(text) / 2] = '!';
    sl_assert_status(sl_control_status_parse(text, strlen(text), &job[1]),
                     SL_ERR_CORRUPT);
    free(text);
    free(job);
}

/* ---- noise ---- */

enum {
    N_NOISE = 120000,
    N_STATUS_NOISE = N_NOISE / 3 /* longer texts */
};

static uint32_t next(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return *seed >> 8;
}

static size_t spoil(char *text, size_t n, size_t room, uint32_t *seed)
{
    static const char bits[] = "{}[]\":,0123456789.-+eEtfnu\\ \n\x01\xff";
    const size_t at = n > 0 ? next(seed) % n : 0;

    switch (next(seed) % 5) {
    case 0:
        text[at] = bits[next(seed) % (sizeof(bits) - 1)];
        break;
    case 1: /* cut out */
        memmove(text + at, text + at + 1, n - at);
        n = n > 0 ? n - 1 : 0;
        break;
    case 2: /* put in */
        if (n + 1 < room) {
            memmove(text + at + 1, text + at, n - at);
            text[at] = bits[next(seed) % (sizeof(bits) - 1)];
            n++;
        }
        break;
    case 3: /* double a piece */
        if (2 * n < room) {
            const size_t m = (n - at) / 2;

            memmove(text + at + m, text + at, n - at);
            n += m;
        }
        break;
    default:
        text[at] = (char)next(seed);
        break;
    }
    return n;
}

/* 120000 spoiled orders: each is refused, or is an order in range. */
static void noise_is_refused_or_in_range(void **state)
{
    uint32_t seed = 20251;
    int i, g, n_good = 0;

    (void)state;
    for (i = 0; i < N_NOISE; i++) {
        char text[2048];
        sl_control_order_t order;
        size_t n = strlen(good);
        uint32_t k = 1 + next(&seed) % 4;

        memcpy(text, good, n);
        for (; k > 0; k--) {
            n = spoil(text, n, sizeof(text), &seed);
        }
        if (sl_control_order_parse(text, n, &order) < 0) {
            continue;
        }
        n_good++;
        assert_in_range(order.sequence, 1, SL_CONTROL_MAX_SEQUENCE);
        assert_true(order.ttl_ms <= 86400000);
        assert_true(order.floor_share >= 1.0 && order.floor_share <= 100.0);
        assert_in_range(order.n_gates, 0, SL_CONTROL_MAX_DEVICES);
        for (g = 0; g < order.n_gates; g++) {
            assert_true(order.gates[g].share <= 100.0);
            assert_true(order.gates[g].limit_bytes <= SL_CONTROL_MAX_SEQUENCE);
        }
        assert_in_range(order.n_yields, 0, SL_CONTROL_MAX_YIELDS);
        for (g = 0; g < order.n_yields; g++) {
            assert_in_range(order.yields[g].gate, 0, order.n_gates - 1);
            assert_in_range(order.yields[g].device, 0,
                            SL_CONTROL_MAX_DEVICES - 1);
            assert_null(strchr(order.yields[g].host.text, '/'));
            assert_true(order.yields[g].host.text[0] != '.');
        }
    }
    assert_in_range(n_good, N_NOISE / 100, N_NOISE / 2); /* both happen */
}

/* The same of a job with a GPU. */
static void noise_in_a_job_is_refused_or_in_range(void **state)
{
    static const char good_job[] =
        CUDA_DEVICE ",\"gpu\":\"GPU-1a2b3c4d-0000-1111-2222-333344445555\","
                    "\"gpu_bytes\":85899345920}]}";
    uint32_t seed = 20261;
    int i, d, n_good = 0;

    (void)state;
    for (i = 0; i < N_NOISE; i++) {
        char text[2048];
        sl_control_job_t job;
        size_t n = strlen(good_job);
        uint32_t k = 1 + next(&seed) % 4;

        memcpy(text, good_job, n);
        for (; k > 0; k--) {
            n = spoil(text, n, sizeof(text), &seed);
        }
        if (sl_control_job_parse(text, n, &job) < 0) {
            continue;
        }
        n_good++;
        assert_in_range(job.n_devices, 0, SL_CONTROL_MAX_DEVICES);
        for (d = 0; d < job.n_devices; d++) {
            const sl_control_device_t *device = &job.devices[d];

            assert_non_null(memchr(device->gpu_id, 0, sizeof(device->gpu_id)));
            assert_int_equal(strspn(device->gpu_id, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                    "abcdefghijklmnopqrstuvwxyz"
                                                    "0123456789-:."),
                             strlen(device->gpu_id));
            assert_true(device->gpu_bytes <= SL_CONTROL_MAX_SEQUENCE);
        }
    }
    assert_in_range(n_good, N_NOISE / 100, N_NOISE / 2); /* both happen */
}

static int is_text(const char *text, size_t room)
{
    const char *end = memchr(text, '\0', room);

    if (end == NULL) {
        return 0;
    }
    for (; text < end; text++) {
        if (*text < ' ' || *text > '~') {
            return 0;
        }
    }
    return 1;
}

static int is_real(double value, double most)
{
    return isfinite(value) && value >= 0.0 && value <= most;
}

static void check_device_status(const sl_control_device_status_t *device)
{
    const uint64_t numbers[] = {device->limit_bytes,  device->limit_asked_bytes,
                                device->held_bytes,   device->used_bytes,
                                device->peak_bytes,   device->host_used_bytes,
                                device->busy_us,      device->waiting_us,
                                device->throttled_us, device->n_ops};
    size_t i;

    assert_true(is_text(device->name, sizeof(device->name)));
    assert_true(is_real(device->share_asked, 100.0));
    assert_true(is_real(device->share_achieved, 1e18));
    for (i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        assert_true(numbers[i] <= SL_CONTROL_MAX_SEQUENCE);
    }
    for (i = 0; i < SL_MEM_N_CLASSES; i++) {
        assert_true(device->classes[i].used_bytes <= SL_CONTROL_MAX_SEQUENCE);
        assert_true(device->classes[i].host_bytes <= SL_CONTROL_MAX_SEQUENCE);
        assert_true(device->classes[i].n_spills <= SL_CONTROL_MAX_SEQUENCE);
    }
}

static void check_status(const sl_control_status_t *job)
{
    int i;

    assert_true(job->sequence <= SL_CONTROL_MAX_SEQUENCE);
    assert_true(job->accepted_sequence <= SL_CONTROL_MAX_SEQUENCE);
    assert_true(job->applied_sequence <= SL_CONTROL_MAX_SEQUENCE);
    assert_in_range(job->state, 0, SL_JOB_N_STATES - 1);
    assert_in_range(job->job_class, 0, SL_JOB_N_CLASSES - 1);
    assert_true(is_text(job->reason, sizeof(job->reason)));
    assert_true(is_text(job->unit, sizeof(job->unit)));
    assert_true(is_text(job->writer_token, sizeof(job->writer_token)));
    assert_true(is_real(job->units_per_s, 1e18));
    assert_true(is_real(job->last_us, 1e18));
    assert_true(is_real(job->median_us, 1e18));
    assert_true(is_real(job->p99_us, 1e18));
    assert_in_range(job->n_recent, 0, SL_CONTROL_RECENT);
    for (i = 0; i < job->n_recent; i++) {
        assert_true(is_real(job->recent_us[i], 1e18));
    }
    assert_in_range(job->n_devices, 0, SL_CONTROL_MAX_DEVICES);
    for (i = 0; i < job->n_devices; i++) {
        check_device_status(&job->devices[i]);
    }
}

/* What a coordinator, `sluice ctl` and `sluice top` read. */
static void noise_in_a_status_is_refused_or_in_range(void **state)
{
    sl_control_status_t *job = malloc(sizeof(*job));
    char *good_status = NULL;
    uint32_t seed = 20281;
    size_t n_bytes;
    int i, n_good = 0;

    (void)state;
    assert_non_null(job);
    fill_status(job);
    job->n_devices = 1;
    job->n_recent = 3;
    sl_assert_ok(sl_control_status_format(job, &good_status));
    n_bytes = strlen(good_status);
    for (i = 0; i < N_STATUS_NOISE; i++) {
        char text[4096];
        size_t n = n_bytes;
        uint32_t k = 1 + next(&seed) % 4;

        assert_true(n < sizeof(text) / 2);
        memcpy(text, good_status, n);
        for (; k > 0; k--) {
            n = spoil(text, n, sizeof(text), &seed);
        }
        if (sl_control_status_parse(text, n, job) >= 0) {
            n_good++;
            check_status(job);
        }
    }
    assert_in_range(n_good, N_STATUS_NOISE / 100,
                    N_STATUS_NOISE / 2); /* both happen */
    free(good_status);
    free(job);
}

/* It is tolerant of types and absent fields, not of ranges. */
static void noise_in_antmans_config_is_refused_or_in_range(void **state)
{
    static const char good_config[] =
        "{\"name\": \"pod\", \"gpuConfigInfo\": {\"cpu:0\": "
        "{\"maxDeviceMem\": 1073741824}, \"0000:3D:00.0\": "
        "{\"maxDeviceMem\": 7}}, \"perfControl\": 40}";
    char keys[2][SL_ANTMAN_KEY_BYTES];
    uint32_t seed = 20291;
    int i, n_good = 0, n_said = 0;

    (void)state;
    sl_antman_key("cpu:0", NULL, keys[0]);
    sl_antman_key("cuda:0", "0000:3d:00.0", keys[1]);
    for (i = 0; i < N_NOISE; i++) {
        char text[1024];
        sl_antman_config_t config;
        size_t n = strlen(good_config);
        uint32_t k = 1 + next(&seed) % 4;

        memcpy(text, good_config, n);
        for (; k > 0; k--) {
            n = spoil(text, n, sizeof(text), &seed);
        }
        if (sl_antman_config_parse(text, n, 2, keys, &config) < 0) {
            continue;
        }
        n_good++;
        assert_in_range(config.share + 1, 0, 101); /* -1 = not said */
        n_said += config.share >= 0 && config.limit_bytes[1] > 0;
        assert_true(config.limit_bytes[0] <= INT64_MAX);
        assert_true(config.limit_bytes[1] <= INT64_MAX);
    }
    assert_in_range(n_good, N_NOISE / 100, N_NOISE * 3 / 4); /* both happen */
    assert_in_range(n_said, N_NOISE / 100, n_good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        sl_unit_test(a_good_order_is_read),
        sl_unit_test(what_is_absent_has_defaults),
        sl_unit_test(every_bad_order_is_refused_with_its_reason),
        sl_unit_test(a_text_with_nul_is_refused),
        sl_unit_test(too_many_devices_are_refused),
        sl_unit_test(every_cut_of_a_good_order_is_refused),
        sl_unit_test(an_order_survives_its_text),
        sl_unit_test(a_job_survives_its_text),
        sl_unit_test(a_gpu_is_optional),
        sl_unit_test(every_bad_gpu_is_refused_with_its_reason),
        sl_unit_test(the_largest_job_is_read),
        sl_unit_test(a_status_survives_its_text),
        sl_unit_test(noise_is_refused_or_in_range),
        sl_unit_test(noise_in_a_job_is_refused_or_in_range),
        sl_unit_test(noise_in_a_status_is_refused_or_in_range),
        sl_unit_test(noise_in_antmans_config_is_refused_or_in_range),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
