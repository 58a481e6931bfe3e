sl_test(engine optimizer LINK sl_engine)
sl_test(engine schedule LINK sl_engine)
sl_test(engine safetensors LINK sl_engine)
sl_test(engine report LINK sl_engine)

add_library(engine_fixture STATIC engine/engine_fixture.c)
set_target_properties(engine_fixture PROPERTIES C_EXTENSIONS OFF)
target_link_libraries(engine_fixture PUBLIC sl_engine sl_test_support
    PRIVATE $<BUILD_INTERFACE:sl_warnings>)
sl_test(engine exact LINK engine_fixture TIMEOUT 600)
sl_test(engine engine LINK engine_fixture)
sl_test(engine memory_plan LINK engine_fixture TIMEOUT 300)
sl_test(engine limits LINK engine_fixture)
sl_test(engine oom WRAP_ALLOC LINK engine_fixture)

add_library(world_bed STATIC engine/world_bed.c)
set_target_properties(world_bed PROPERTIES C_EXTENSIONS OFF)
target_link_libraries(world_bed PUBLIC sl_engine
    PRIVATE $<BUILD_INTERFACE:sl_warnings>)
sl_test(engine world LINK world_bed TIMEOUT 600)
sl_test(engine checkpoint LINK engine_fixture)
sl_test(engine checkpoint_files LINK engine_fixture)
sl_test(engine checkpoint_fuzz LINK engine_fixture)
sl_test(engine checkpoint_oom WRAP_ALLOC LINK engine_fixture)
