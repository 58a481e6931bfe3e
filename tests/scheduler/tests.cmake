foreach(name op_manager op_stats device share share_gate pulse pulse_ops)
    sl_test(scheduler ${name} LINK sl_scheduler)
endforeach()
foreach(name coordinator coordinator_files coordinator_gpus coordinator_memory
        priority)
    sl_test(scheduler ${name} LINK sl_scheduler)
endforeach()
foreach(name control_files control_secure control_job control_waits control_antman control_pulse)
    sl_test(scheduler ${name} LINK sl_scheduler)
endforeach()
sl_test(scheduler share_training LINK engine_fixture)
sl_test(scheduler control_oom WRAP_ALLOC LINK sl_scheduler)

# the management library of NVIDIA's driver: without one, and with a fake
add_library(sl_fake_nvml SHARED scheduler/fake_nvml/nvml.c)
set_target_properties(sl_fake_nvml PROPERTIES C_EXTENSIONS OFF
    OUTPUT_NAME nvidia-ml SUFFIX .so.1
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/fake_nvml)
target_link_libraries(sl_fake_nvml PRIVATE $<BUILD_INTERFACE:sl_warnings>)
sl_test(scheduler nvml LINK sl_scheduler)
add_test(NAME scheduler.nvml_fake COMMAND test_scheduler_nvml)
set_tests_properties(scheduler.nvml_fake PROPERTIES LABELS unit TIMEOUT 60
    ENVIRONMENT "LD_LIBRARY_PATH=$<TARGET_FILE_DIR:sl_fake_nvml>;SL_TESTS_FAKE_NVML=1")
add_dependencies(test_scheduler_nvml sl_fake_nvml)

foreach(name control_stats control_pain coordinator_pulse)
    sl_test(scheduler ${name} LINK sl_scheduler)
endforeach()
