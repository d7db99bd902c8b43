#include "src/job/place_path.h"

#include "src/base/text.h"
#include "src/job/job_spec.h"

namespace netsum {

Status check_path(const PlaceInfo& path, const std::string& who) {
  for (const PlaceInfo* place = &path;; place = &place->below(0)) {
    if (!is_printable(place->address()) || place->address().size() > kMaxJobNameBytes)
      return {ErrorCode::kInvalidArgument,
              who + " names an aggregator whose address is not printable, or too long"};
    if (place->below_size() > 1)
      return {ErrorCode::kInvalidArgument, who + " names " + std::to_string(place->below_size()) +
                                               " aggregators below " + place->address() +
                                               ", but can join through one only"};
    if (place->below().empty()) return {};
  }
}

PlaceInfo* lowest_of(PlaceInfo* path) {
  while (!path->below().empty()) path = path->mutable_below(0);
  return path;
}

PlaceInfo path_from(PlaceInfo own, const PlaceInfo& asked) {
  if (!asked.address().empty()) own.set_address(asked.address());
  *own.mutable_below() = asked.below();
  return own;
}

PlaceInfo top_of(const PlaceInfo& path) {
  PlaceInfo top = path;
  top.clear_below();
  top.clear_ranks();
  return top;
}

bool add_rank(const PlaceInfo& path, PlaceInfo* tree) {
  if (path.id() != tree->id()) return false;
  if (path.below().empty()) {
    tree->set_ranks(tree->ranks() + 1);
    return true;
  }
  for (PlaceInfo& known : *tree->mutable_below()) {
    if (add_rank(path.below(0), &known)) return true;
  }
  PlaceInfo* fresh = tree->add_below();
  *fresh = top_of(path.below(0));
  return add_rank(path.below(0), fresh);
}

}  // namespace netsum
