# What `cmake --install` puts down, in components, of which cmake/package.cmake makes Debian packages. `library` and
# `development` are for programs that use the library: libnetsum, its headers, a CMake package (find_package(netsum)) and a
# pkg-config file. `command` also has the service; the command itself and the plug-ins are in their folders.
include(CMakePackageConfigHelpers)

install(TARGETS netsum EXPORT netsumTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/netsum DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h")

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/netsum)
install(EXPORT netsumTargets NAMESPACE netsum:: DESTINATION ${package_folder} COMPONENT development)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/netsumConfig.cmake.in
  ${PROJECT_BINARY_DIR}/package/netsumConfig.cmake INSTALL_DESTINATION ${package_folder})
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/netsumConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/package/netsumConfig.cmake
              ${PROJECT_BINARY_DIR}/package/netsumConfigVersion.cmake
  DESTINATION ${package_folder} COMPONENT development)

# The prefix as seen from the .pc file, so that a moved installation still works.
file(RELATIVE_PATH prefix_from_pc /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/netsum.pc.in ${PROJECT_BINARY_DIR}/package/netsum.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/netsum.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

# systemd reads this folder below /usr and /usr/local. Nothing starts the service until an administrator does.
install(FILES ${PROJECT_SOURCE_DIR}/deploy/netsum-aggregator.service
  DESTINATION lib/systemd/system COMPONENT command)
