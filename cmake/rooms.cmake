# Rooms. A room's sources see the public headers, the room itself, and the rooms it MAY_USE: each of
# those is a directory that holds nothing but a link to that room, so an include of any other room
# does not compile.

set(GUOZHUANG_ROOMS_DIR ${PROJECT_BINARY_DIR}/rooms)

# guozhuang_corridor(NAME PATH...): makes PATH (a directory or single headers below src/ or the top)
# includable under its own name.
function(guozhuang_corridor name)
  add_library(corridor_${name} INTERFACE)
  foreach(path ${ARGN})
    if(EXISTS ${PROJECT_SOURCE_DIR}/src/${path})
      set(target ${PROJECT_SOURCE_DIR}/src/${path})
    else()
      set(target ${PROJECT_SOURCE_DIR}/${path})
    endif()
    cmake_path(GET path PARENT_PATH parent)
    file(MAKE_DIRECTORY ${GUOZHUANG_ROOMS_DIR}/${name}/${parent})
    file(CREATE_LINK ${target} ${GUOZHUANG_ROOMS_DIR}/${name}/${path} SYMBOLIC)
  endforeach()
  target_include_directories(corridor_${name} INTERFACE ${GUOZHUANG_ROOMS_DIR}/${name})
endfunction()

guozhuang_corridor(collectives collectives)
guozhuang_corridor(base base)
guozhuang_corridor(trace trace)
guozhuang_corridor(training training)
guozhuang_corridor(topology topology)
guozhuang_corridor(device device)
guozhuang_corridor(wire wire)
guozhuang_corridor(backends backends)
guozhuang_corridor(protocol protocol)
guozhuang_corridor(engine engine)
guozhuang_corridor(runtime runtime)
guozhuang_corridor(api api)
# The single headers that rooms may see of a room that is otherwise closed to them.
guozhuang_corridor(base_error_text base/error_text.hpp)
guozhuang_corridor(base_keep_for_ever base/keep_for_ever.hpp)
guozhuang_corridor(engine_control engine/control.hpp engine/pump.hpp)
guozhuang_corridor(engine_backend engine/backend.hpp)
guozhuang_corridor(api_drivers api/drivers.hpp)
guozhuang_corridor(collectives_algorithms collectives/algorithms.hpp)
guozhuang_corridor(collectives_codecs collectives/codecs)
guozhuang_corridor(collectives_policy collectives/policy.hpp collectives/operation_kind.hpp)
guozhuang_corridor(collectives_concepts collectives/concepts collectives/layout/blocks.hpp)

add_library(guozhuang_options INTERFACE)
target_compile_options(guozhuang_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
  -Wnon-virtual-dtor)
if(GUOZHUANG_WERROR)
  target_compile_options(guozhuang_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES Clang)
  target_compile_options(guozhuang_options INTERFACE -Wthread-safety)
endif()

# guozhuang_room(NAME SOURCES file... MAY_USE room... LINK library...)
function(guozhuang_room name)
  cmake_parse_arguments(ROOM "" "" "SOURCES;MAY_USE;LINK" ${ARGN})
  add_library(room_${name} OBJECT ${ROOM_SOURCES})
  list(TRANSFORM ROOM_MAY_USE PREPEND corridor_)
  target_link_libraries(room_${name} PRIVATE guozhuang_options ${ROOM_MAY_USE} ${ROOM_LINK})
  target_include_directories(room_${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  # GCC inlines less in large sources, as those of a unity build are: an operation took 5 % more
  # instructions.
  target_compile_options(room_${name} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=large-unit-insns=1000000>)
  set_property(GLOBAL APPEND PROPERTY GUOZHUANG_ROOMS room_${name})
  set_property(GLOBAL APPEND PROPERTY GUOZHUANG_ROOM_LINKS ${ROOM_LINK})
endfunction()
