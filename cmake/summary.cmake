# What was configured, in a few lines at the end.
message(STATUS "guozhuang ${PROJECT_VERSION}, ${CMAKE_BUILD_TYPE}, "
  "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}")
message(STATUS "  GUOZHUANG_TESTS ${GUOZHUANG_TESTS}, GUOZHUANG_PERF ${GUOZHUANG_PERF}, "
  "GUOZHUANG_EXAMPLES ${GUOZHUANG_EXAMPLES}, GUOZHUANG_WERROR ${GUOZHUANG_WERROR}, "
  "GUOZHUANG_CUDA ${GUOZHUANG_CUDA}")
message(STATUS "  MPI ${MPI_C_VERSION} (${MPIEXEC_EXECUTABLE}), "
  "CUDA plugin: ${GUOZHUANG_WITH_CUDA}, "
  "frameworks: ${GUOZHUANG_FRAMEWORKS}")
get_property(left_out GLOBAL PROPERTY GUOZHUANG_TESTS_LEFT_OUT)
if(left_out)
  list(JOIN left_out ", " left_out)
  message(STATUS "  Tests left out: ${left_out}")
endif()
