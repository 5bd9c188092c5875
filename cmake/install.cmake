# What `cmake --install` puts where: the shared libraries, their headers, and the files by which
# find_package and pkg-config find it. Programs and the CUDA plugin say so themselves, where they
# are made.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/guozhuang)
set(package_config ${PROJECT_BINARY_DIR}/guozhuangConfig.cmake)
set(package_version ${PROJECT_BINARY_DIR}/guozhuangConfigVersion.cmake)

install(TARGETS guozhuang guozhuang_c guozhuang_dlib guozhuang_eigen guozhuang_torch
  EXPORT guozhuang-targets LIBRARY FILE_SET HEADERS)
install(EXPORT guozhuang-targets NAMESPACE guozhuang:: FILE guozhuangTargets.cmake
  DESTINATION ${package_dir})

# The library's own dependencies are private, so there is nothing to find but its target.
file(CONFIGURE OUTPUT ${package_config}
  CONTENT "include(\"\${CMAKE_CURRENT_LIST_DIR}/guozhuangTargets.cmake\")\n" @ONLY)
write_basic_package_version_file(${package_version} COMPATIBILITY SameMinorVersion)
install(FILES ${package_config} ${package_version} DESTINATION ${package_dir})

file(RELATIVE_PATH up_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(library guozhuang guozhuang-c)
  set(package ${PROJECT_BINARY_DIR}/${library}.pc)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${library}.pc.in ${package} @ONLY)
  install(FILES ${package} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
