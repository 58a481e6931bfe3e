# `cmake --install`: the program, one shared library of everything below it,
# the headers, and a pkg-config file named sluice.
include(GNUInstallDirs)

set(sl_library_folders base memory scheduler layers partition engine)
file(WRITE ${PROJECT_BINARY_DIR}/library.c
     "extern int sl_library;\nint sl_library;\n")
add_library(sl_library SHARED ${PROJECT_BINARY_DIR}/library.c)
set_target_properties(sl_library PROPERTIES OUTPUT_NAME sluice
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
target_link_options(sl_library PRIVATE -Wl,-z,defs -Wl,--whole-archive)
foreach(folder ${sl_library_folders})
    target_link_options(sl_library PRIVATE $<TARGET_FILE:sl_${folder}>)
    add_dependencies(sl_library sl_${folder})
endforeach()
target_link_options(sl_library PRIVATE -Wl,--no-whole-archive)
target_link_libraries(sl_library PRIVATE sl_engine)

install(TARGETS sluice sl_library
    RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder ${sl_library_folders})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder}
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice
        FILES_MATCHING PATTERN "*.h" PATTERN "*_internal.h" EXCLUDE)
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/sluice.pc.in
    ${PROJECT_BINARY_DIR}/sluice.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/sluice.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
