#pragma once

#include <string>

namespace sft::channel {

// The folder beside a result's in which attempts work on it, each in one of its own: a node that
// hears late of its attempt's end must not remove what the next one works on.
inline std::string WorkFolder(const std::string& output_dir) { return output_dir + ".work"; }
inline std::string WorkFolder(const std::string& output_dir, const std::string& attempt_uid) {
  return WorkFolder(output_dir) + "/" + attempt_uid;
}

}  // namespace sft::channel
