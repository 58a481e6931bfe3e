# The program from outside, and the house rules.
add_test(NAME cli.program
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_cli.sh $<TARGET_FILE:sluice>)
add_test(NAME cli.control
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_control.sh
        $<TARGET_FILE:sluice>)
add_test(NAME cli.sharing
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_sharing.sh
        $<TARGET_FILE:sluice>)
add_test(NAME cli.rebalance
    COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cli/test_rebalance.sh
        $<TARGET_FILE:sluice> $<IF:$<BOOL:${SL_SANITIZE}>,no-mpi,mpi>)
# Open MPI is not instrumented for races, and the modules that it unloads leave
# blocks behind that no leak can be traced to; engine.ranks looks for ours.
if(NOT SL_SANITIZE MATCHES thread)
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
    cli.program cli.control cli.sharing cli.rebalance house.layout house.headers PROPERTIES
    TIMEOUT 600 ENVIRONMENT "${SL_TEST_ENVIRONMENT}")
