# The library itself: every room's objects, once as the shared library that users get and once as a
# static one for unit tests.
get_property(rooms GLOBAL PROPERTY GUOZHUANG_ROOMS)
get_property(links GLOBAL PROPERTY GUOZHUANG_ROOM_LINKS)
list(REMOVE_DUPLICATES links)
list(TRANSFORM rooms REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)

set(public_headers
  arena.hpp
  async_averager.hpp
  convert.hpp
  elements.hpp
  ema.hpp
  error.hpp
  export.hpp
  gossip.hpp
  grad_scaler.hpp
  grid.hpp
  guozhuang.hpp
  handle.hpp
  info.hpp
  interop/mpi.hpp
  length_sampler.hpp
  local_sgd.hpp
  log.hpp
  master_weights.hpp
  mpi_communicator.hpp
  operations.hpp
  optimizer.hpp
  parameter_server.hpp
  plan.hpp
  process_set.hpp
  sampler.hpp
  schedule.hpp
  session.hpp
  shape.hpp
  sharded_optimizer.hpp
  stream.hpp
  tensor.hpp
  timeline.hpp
  training.hpp
  types.hpp
  version.hpp)

add_library(guozhuang SHARED ${objects})
add_library(guozhuang::guozhuang ALIAS guozhuang)
list(TRANSFORM public_headers PREPEND ${PROJECT_SOURCE_DIR}/include/guozhuang/)
target_sources(guozhuang PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include
  FILES ${public_headers})
target_compile_features(guozhuang PUBLIC cxx_std_20)
target_link_libraries(guozhuang PRIVATE ${links} ${CMAKE_DL_LIBS})
# A dependency that is static stays ours alone.
target_link_options(guozhuang PRIVATE LINKER:--exclude-libs,ALL)
# Its threads and what it does at exit() outlive a dlclose().
target_link_options(guozhuang PRIVATE LINKER:-z,nodelete)
set_target_properties(guozhuang PROPERTIES
  VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  LINKER_LANGUAGE CXX)

add_library(guozhuang_internal STATIC EXCLUDE_FROM_ALL ${objects})
target_link_libraries(guozhuang_internal PUBLIC ${links} ${CMAKE_DL_LIBS})
target_include_directories(guozhuang_internal PUBLIC ${PROJECT_SOURCE_DIR}/include
  ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
set_target_properties(guozhuang_internal PROPERTIES LINKER_LANGUAGE CXX)
