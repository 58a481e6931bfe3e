/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file sluice.h
 * All of Sluice for a C program: include this, link `sluice`.
 *
 * The order of things (examples/two_stages.c is a whole program):
 *   1. sl_dataset_open, sl_loader_create     data        engine/data/data.h
 *   2. sl_model_create, sl_model_add         model       layers/layers.h
 *   3. sl_device_set_create                  devices     scheduler/scheduler.h
 *   4. sl_part_costs_analytic, sl_part_split cuts        partition/partition.h
 *   5. sl_engine_create, sl_engine_step      training    engine/engine.h
 *
 * Every call that can fail returns a sl_status_t; sl_last_error() has the
 * detail. What a function is given is borrowed unless its header says so.
 */
#ifndef SL_ENGINE_SLUICE_H
#define SL_ENGINE_SLUICE_H

#include "base/log.h"
#include "base/status.h"
#include "engine/data/data.h"
#include "engine/engine.h"
#include "layers/layers.h"
#include "partition/partition.h"
#include "scheduler/scheduler.h"

#endif /* SL_ENGINE_SLUICE_H */
