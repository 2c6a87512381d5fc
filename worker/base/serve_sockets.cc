#include "worker/base/serve_sockets.h"

#include "common/io/file.h"

namespace sft::worker {

std::vector<std::string> ServeSocketsThere(const NodeSetup& setup, const std::string& uid) {
  const std::string prefix = setup.ServeSockets(uid);
  const std::string folder = prefix.substr(0, prefix.rfind('/') + 1);
  std::vector<std::string> sockets;
  for (const std::string& name : io::ListDir(folder).value_or(std::vector<std::string>())) {
    if ((folder + name).starts_with(prefix)) sockets.push_back(folder + name);
  }
  return sockets;
}

}  // namespace sft::worker
