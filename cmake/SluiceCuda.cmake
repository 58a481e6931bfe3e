# CUDA: what is built against the toolkit (SL_CUDA=ON, preset cuda), and the
# same sources against the stand-in of tests/cuda_standin, which needs no
# toolkit. Both are static libraries named by sl_cuda_library().

set(SL_CUDA AUTO CACHE STRING "CUDA devices: AUTO (report only), ON, OFF")
set_property(CACHE SL_CUDA PROPERTY STRINGS AUTO ON OFF)
set(SL_CUDA_ARCHITECTURES 80-real 90-real 100-real CACHE STRING
    "GPU architectures that kernels are compiled for")

if(SL_CUDA STREQUAL "OFF")
    message(STATUS "CUDA: off")
else()
    find_package(CUDAToolkit 12.0 QUIET)
    if(CUDAToolkit_FOUND)
        get_filename_component(sl_cuda_root ${CUDAToolkit_BIN_DIR} DIRECTORY)
    endif()
    if(SL_CUDA STREQUAL "AUTO" AND CUDAToolkit_FOUND)
        message(STATUS "CUDA: not built; toolkit ${CUDAToolkit_VERSION} is in "
            "${sl_cuda_root} (use it: --preset cuda)")
    elseif(SL_CUDA STREQUAL "AUTO")
        message(STATUS "CUDA: not built; no toolkit found")
    elseif(NOT CUDAToolkit_FOUND)
        message(FATAL_ERROR "CUDA: asked for (SL_CUDA=ON) and no toolkit of "
            "version 12 or newer found; -DCUDAToolkit_ROOT= names its folder")
    else()
        message(STATUS "CUDA: toolkit ${CUDAToolkit_VERSION} in "
            "${sl_cuda_root}, for ${SL_CUDA_ARCHITECTURES}")
        set(SL_HAS_CUDA 1)
        set(CMAKE_CUDA_ARCHITECTURES ${SL_CUDA_ARCHITECTURES})
        if(NOT CMAKE_CUDA_COMPILER)
            set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
        endif()
        enable_language(CUDA)
    endif()
endif()

# The stand-in's kernels are C++: without a compiler its tests are left out.
if(SL_TESTS OR SL_HAS_CUDA)
    include(CheckLanguage)
    check_language(CXX)
    if(CMAKE_CXX_COMPILER)
        enable_language(CXX)
        set(SL_HAS_CXX 1)
    else()
        message(STATUS "CUDA: no C++ compiler: its stand-in is not tested")
    endif()
endif()

set(sl_cuda_c_sources
    memory/cuda_status.c
    memory/ops_cuda.c)
set(sl_cuda_kernel_sources
    layers/cuda/elementwise.cu
    layers/cuda/embedding.cu
    layers/cuda/layer_norm.cu
    layers/cuda/optimizer.cu
    layers/cuda/softmax_cross_entropy.cu
    layers/cuda/sum_squares.cu)

# Sums and products stay apart, so that the bits of kernels do not depend on
# the compiler; they wait for memory anyway.
function(sl_cuda_library target kind)
    set(kernels ${sl_cuda_kernel_sources})
    list(TRANSFORM kernels PREPEND ${PROJECT_SOURCE_DIR}/)
    set(sources ${sl_cuda_c_sources})
    list(TRANSFORM sources PREPEND ${PROJECT_SOURCE_DIR}/)
    if(kind STREQUAL "standin")
        # a copy of the name: in the cuda preset nvcc has the .cu itself
        foreach(kernel IN LISTS kernels)
            get_filename_component(name ${kernel} NAME_WE)
            set(wrapper ${CMAKE_CURRENT_BINARY_DIR}/standin_${name}.cpp)
            file(CONFIGURE OUTPUT ${wrapper} CONTENT "#include \"${kernel}\"\n")
            list(APPEND sources ${wrapper})
        endforeach()
    else()
        list(APPEND sources ${kernels})
    endif()
    add_library(${target} STATIC ${sources})
    set_target_properties(${target} PROPERTIES C_EXTENSIONS OFF
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON
        POSITION_INDEPENDENT_CODE ON)
    target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PUBLIC sl_memory sl_base
        PRIVATE $<BUILD_INTERFACE:sl_cuda_warnings>)
    if(kind STREQUAL "standin")
        target_link_libraries(${target} PUBLIC sl_cuda_standin)
        target_compile_options(${target} PRIVATE
            $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)
    else()
        target_link_libraries(${target} PUBLIC CUDA::cudart)
        target_compile_options(${target} PRIVATE
            $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false>)
    endif()
endfunction()

add_library(sl_cuda_warnings INTERFACE)
target_link_libraries(sl_cuda_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:C>:sl_warnings>)
target_compile_options(sl_cuda_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
if(SL_WERROR)
    target_compile_options(sl_cuda_warnings INTERFACE
        $<$<COMPILE_LANGUAGE:CXX>:-Werror>
        "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Werror all-warnings -Xcompiler=-Werror>")
endif()

# The CUDA runtime that runs on a CPU; its headers come before the toolkit's.
function(sl_cuda_standin_library target)
    set(sources block copy launch memory order runtime stream)
    list(TRANSFORM sources PREPEND
        ${PROJECT_SOURCE_DIR}/tests/cuda_standin/)
    list(TRANSFORM sources APPEND .c)
    add_library(${target} STATIC ${sources})
    set_target_properties(${target} PROPERTIES C_EXTENSIONS OFF)
    target_include_directories(${target} BEFORE PUBLIC
        ${PROJECT_SOURCE_DIR}/tests/cuda_standin/include
        ${PROJECT_SOURCE_DIR}/tests/cuda_standin)
    target_link_libraries(${target} PUBLIC sl_flags
        PRIVATE $<BUILD_INTERFACE:sl_warnings>)
endfunction()
