#pragma once

#include <ostream>

namespace sft::client {

// Where a command writes: stdout is data, stderr is talk. Tests give string streams.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;  // err is a terminal: a bar may be redrawn there
  int width = 80;
};

}  // namespace sft::client
