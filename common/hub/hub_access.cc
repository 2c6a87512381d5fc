#include "common/hub/hub_access.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "common/hub/http.h"
#include "common/hub/hub.h"
#include "common/io/file.h"

namespace sft::hub {
namespace {

constexpr int64_t kMaxTokenBytes = 4096;

// As huggingface_hub reads its switches.
bool IsOn(std::string value) {
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// Also where the scheme is missing or wrong.
bool HasUser(std::string_view endpoint) {
  const size_t scheme = endpoint.find("://");
  if (scheme != endpoint.npos) endpoint.remove_prefix(scheme + 3);
  return endpoint.substr(0, endpoint.find('/')).find('@') != endpoint.npos;
}

// Text that may stand in a header: an error of the library that sends it would quote any other.
bool IsToken(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace

absl::StatusOr<HubAccess> HubAccessOf(
    const std::string& endpoint, const std::string& token_file, const std::string& ca_file,
    const std::function<std::string(const std::string&)>& environment) {
  HubAccess access;
  access.endpoint = endpoint.empty() ? environment("HF_ENDPOINT") : endpoint;
  if (access.endpoint.empty()) access.endpoint = kDefaultEndpoint;
  while (access.endpoint.ends_with('/')) access.endpoint.pop_back();
  if (HasUser(access.endpoint)) {
    return InvalidArgument(
        "the address of the model hub (--hub or HF_ENDPOINT) has a user or password in it, and "
        "everybody is shown the address: leave it out, and give the token by --hub-token-file");
  }
  if (OriginOf(access.endpoint).empty()) {
    return InvalidArgument(
        fmt::format("\"{}\" is no address of a model hub: it begins with https:// or http://",
                    access.endpoint));
  }
  access.ca_file = ca_file;
  access.offline = IsOn(environment("HF_HUB_OFFLINE"));
  if (token_file.empty()) {
    access.token = environment("HF_TOKEN");
  } else {
    SFT_ASSIGN_OR_RETURN(access.token, io::ReadFile(token_file, kMaxTokenBytes));
  }
  access.token.erase(access.token.find_last_not_of(" \r\n\t") + 1);
  if (access.token.empty() ? !token_file.empty() : !IsToken(access.token)) {
    return InvalidArgument(fmt::format("{} does not hold one token and nothing else",
                                       token_file.empty() ? "HF_TOKEN" : token_file));
  }
  return access;
}

}  // namespace sft::hub
