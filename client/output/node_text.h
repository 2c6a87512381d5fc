#pragma once

#include <string>

#include "sft/v1/node.pb.h"

namespace sft::client {

// "12% free", with "LOW" or "FULL" where the operator should act; "-": not known.
std::string DiskText(const v1::Node& node);
// Why the node takes no new work, and other warnings for an operator; empty: nothing. Of others'
// text: it is not harmless.
std::string WhyText(const v1::Node& node);

}  // namespace sft::client
