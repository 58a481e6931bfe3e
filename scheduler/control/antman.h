/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file antman.h
 * The JSON files of AntMan's job side (GPU_CONFIG_FILE, GPU_STATUS_FILE), for
 * coordinators written for it: its fields, units and keys, and its tolerance
 * of absent fields; but what is out of range is refused.
 */
#ifndef SL_SCHEDULER_CONTROL_ANTMAN_H
#define SL_SCHEDULER_CONTROL_ANTMAN_H

#include "scheduler/control.h"

enum {
    SL_ANTMAN_KEY_BYTES = 32,
    SL_ANTMAN_MEAN_STEPS = 9 /**< in a duration */
};

/** The key of a device: its name, or its PCI id as AntMan spells it (lower
 *  case, no domain). Devices on one GPU have one key: they divide its limit
 *  equally, and the status has their sums. */
void sl_antman_key(const char *name, const char *pci_id,
                   char key[SL_ANTMAN_KEY_BYTES]);

/** What the config file asks; as an order without sequence. */
typedef struct sl_antman_config {
    int share;                                    /**< percent; -1 = not said */
    uint64_t limit_bytes[SL_CONTROL_MAX_DEVICES]; /**< 0 = not said */
} sl_antman_config_t;

/** Entries of other devices and fields of a wrong type are ignored, as AntMan
 *  does. @return SL_OK, SL_ERR_CORRUPT (no JSON object, out of range) */
SL_NODISCARD sl_status_t sl_antman_config_parse(
    const char *text, size_t n_bytes, int n_devices,
    char keys[][SL_ANTMAN_KEY_BYTES], sl_antman_config_t *config_p);

/** A device in the status file. Peaks are since the start, as there. */
typedef struct sl_antman_use {
    uint64_t peak_bytes, used_bytes, held_bytes, stable_bytes;
    uint64_t host_peak_bytes, host_used_bytes, host_pool_bytes;
} sl_antman_use_t;

/** @param duration_us of a mini-batch; *text_p is owned */
SL_NODISCARD sl_status_t sl_antman_status_format(
    int n_devices, char keys[][SL_ANTMAN_KEY_BYTES],
    const sl_antman_use_t *uses, double duration_us, char **text_p);

#endif /* SL_SCHEDULER_CONTROL_ANTMAN_H */
