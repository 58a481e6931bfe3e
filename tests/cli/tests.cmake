sl_test(cli ranks LINK sl_cli)

# Hosts made of name spaces, and Slurm; both only as root.
add_executable(netns_relay netns/relay.c)
set_target_properties(netns_relay PROPERTIES C_EXTENSIONS OFF
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
target_link_libraries(netns_relay PRIVATE sl_flags
    $<BUILD_INTERFACE:sl_warnings>)

# The program from outside, and the house rules.
add_test(NAME cli.program
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_cli.sh $<TARGET_FILE:sluice>)
add_test(NAME cli.control
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_control.sh
        $<TARGET_FILE:sluice>)
add_test(NAME cli.checkpoint
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_checkpoint.sh
        $<TARGET_FILE:sluice>)
add_test(NAME cli.sharing
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_sharing.sh
        $<TARGET_FILE:sluice>)
add_test(NAME cli.launch
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_launch.sh
        $<TARGET_FILE:sluice>)
# Open MPI is not instrumented for races, and the modules that it unloads leave
# blocks behind that no leak can be traced to; engine.ranks looks for ours.
if(NOT SL_SANITIZE MATCHES thread)
    add_test(NAME cli.faults
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_faults.sh
            $<TARGET_FILE:sluice>)
    add_test(NAME network.hosts
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/netns/run.sh $<TARGET_FILE:sluice>
            $<TARGET_FILE:netns_relay>)
    add_test(NAME network.slurm
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/slurm/run.sh $<TARGET_FILE:sluice>)
    set_tests_properties(network.hosts network.slurm PROPERTIES LABELS network)
    set_tests_properties(cli.faults network.hosts network.slurm PROPERTIES
        TIMEOUT 900 SKIP_RETURN_CODE 77 RUN_SERIAL TRUE
        ENVIRONMENT "${SL_TEST_ENVIRONMENT};ASAN_OPTIONS=detect_leaks=0")
    add_test(NAME cli.mpi
        COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_mpi.sh
            $<TARGET_FILE:sluice>)
    set_tests_properties(cli.mpi PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT 600
        PROCESSORS 2 ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
endif()
add_test(NAME house.layout
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_layout.sh)
add_test(NAME house.headers
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/check_headers.sh)
# Skipped without PyTorch.
find_program(SL_PYTHON python3)
if(SL_PYTHON)
    add_test(NAME parity.pytorch
        COMMAND ${SL_PYTHON}
            ${CMAKE_CURRENT_SOURCE_DIR}/parity/parity.py $<TARGET_FILE:sluice>)
    set_tests_properties(parity.pytorch PROPERTIES SKIP_RETURN_CODE 77)
endif()
set_tests_properties(
    cli.program cli.control cli.checkpoint cli.sharing cli.launch
    house.layout house.headers PROPERTIES
    TIMEOUT 600 ENVIRONMENT "${SL_TEST_ENVIRONMENT}")
# Open MPI leaks a little at its end, and is not instrumented for races.
set_property(TEST cli.checkpoint APPEND PROPERTY ENVIRONMENT
    "LSAN_OPTIONS=suppressions=${CMAKE_CURRENT_SOURCE_DIR}/support/lsan_openmpi.supp")
if(SL_SANITIZE MATCHES thread)
    set_property(TEST cli.checkpoint APPEND PROPERTY ENVIRONMENT
        "SLUICE_NO_MPI=1")
endif()
