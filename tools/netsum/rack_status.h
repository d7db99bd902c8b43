// What `netsum rack status` shows.
#ifndef NETSUM_TOOLS_NETSUM_RACK_STATUS_H_
#define NETSUM_TOOLS_NETSUM_RACK_STATUS_H_

#include <nlohmann/json.hpp>
#include <string>

namespace netsum::tool {

// Every rack that has a note, with its nodes and links.
nlohmann::ordered_json describe_racks();
std::string rack_text(const nlohmann::ordered_json& rack);

}  // namespace netsum::tool

#endif  // NETSUM_TOOLS_NETSUM_RACK_STATUS_H_
