# The CUDA plugin, as GUOZHUANG_CUDA says: AUTO builds it where a toolkit is found, ON demands one, OFF builds none. Included at the top
# level (a language is enabled there) after the library, to which it adds no dependency: what the library learns here is whether there is a
# plugin, and the build id that the two must share.

set(GUOZHUANG_CUDA_ARCHITECTURES 90 CACHE STRING "Compute capabilities of the CUDA plugin (releases: 75;80;86;89;90;100;120)")

# Version, compiler and the headers between library and plugin: a plugin left over from an older build does not fit, and is refused.
set(interface
  include/guozhuang/error.hpp include/guozhuang/stream.hpp include/guozhuang/tensor.hpp include/guozhuang/types.hpp
  src/device/device.hpp src/device/plugin.hpp)
list(TRANSFORM interface PREPEND ${PROJECT_SOURCE_DIR}/)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${interface})
set(hashes)
foreach(header ${interface})
  file(SHA256 ${header} hash)
  string(APPEND hashes ${hash})
endforeach()
string(SHA256 hash "${hashes} ${CMAKE_CXX_FLAGS} ${CMAKE_BUILD_TYPE}")
string(SUBSTRING ${hash} 0 12 hash)
set(GUOZHUANG_BUILD_ID "${PROJECT_VERSION}-${CMAKE_CXX_COMPILER_ID}-${CMAKE_CXX_COMPILER_VERSION}-${hash}")

set(GUOZHUANG_WITH_CUDA false)
if(NOT GUOZHUANG_CUDA STREQUAL OFF)
  # Toolkits live where PATH does not lead.
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(GUOZHUANG_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(GUOZHUANG_NVCC)
    if(GUOZHUANG_NVCC)
      set(ENV{CUDACXX} ${GUOZHUANG_NVCC})  # for check_language, which tries it
    endif()
  endif()
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${GUOZHUANG_CUDA_ARCHITECTURES})
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    if(CMAKE_VERSION VERSION_LESS 3.26)  # which does not know yet that nvcc speaks C++20
      set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
      set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
    endif()
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    if(CUDAToolkit_VERSION VERSION_GREATER_EQUAL 12.5)  # the first with cudaGetDriverEntryPointByVersion
      set(GUOZHUANG_WITH_CUDA true)
    endif()
  endif()
  if(GUOZHUANG_CUDA STREQUAL ON AND NOT GUOZHUANG_WITH_CUDA)
    message(FATAL_ERROR "GUOZHUANG_CUDA=ON, but there is no CUDA toolkit >= 12.5 (found: ${CUDAToolkit_VERSION}): put its nvcc into PATH, "
      "or set CMAKE_CUDA_COMPILER")
  endif()
endif()

set_property(SOURCE ${PROJECT_SOURCE_DIR}/src/device/plugin.cpp TARGET_DIRECTORY room_device_host APPEND PROPERTY COMPILE_DEFINITIONS
  GUOZHUANG_WITH_CUDA=${GUOZHUANG_WITH_CUDA} GUOZHUANG_BUILD_ID="${GUOZHUANG_BUILD_ID}")

if(GUOZHUANG_WITH_CUDA)
  add_subdirectory(${PROJECT_SOURCE_DIR}/src/device/cuda)
  message(STATUS "CUDA plugin: built by CUDA ${CUDAToolkit_VERSION} for ${CMAKE_CUDA_ARCHITECTURES} (GUOZHUANG_CUDA=${GUOZHUANG_CUDA})")
else()
  message(STATUS "CUDA plugin: not built (GUOZHUANG_CUDA=${GUOZHUANG_CUDA})")
endif()
