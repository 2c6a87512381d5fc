#pragma once

#include <ostream>

namespace sft::client {

// Output streams of a command: stdout is data, stderr is talk. Tests pass string streams.
struct Console {
  std::ostream& out;
  std::ostream& err;
  bool terminal = false;  // err is a terminal: a bar may be redrawn there
  int width = 80;
  bool out_terminal = false;  // so is out
};

}  // namespace sft::client
