foreach(name alloc antman budget host_pool limit model pain race trace)
    sl_test(memory ${name} LINK sl_memory)
endforeach()
sl_test(memory sweep WRAP_ALLOC LINK sl_memory)
sl_test(memory train LINK engine_fixture)
add_test(NAME memory.train_cli
    COMMAND sh ${CMAKE_CURRENT_SOURCE_DIR}/memory/train_cli.sh
        $<TARGET_FILE:sluice> ${PROJECT_SOURCE_DIR})
set_tests_properties(memory.train_cli PROPERTIES LABELS memory TIMEOUT 300
    ENVIRONMENT "${SL_TEST_ENVIRONMENT}")
