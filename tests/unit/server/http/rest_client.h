#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "common/base/json.h"
#include "server/app/server.h"
#include "tests/unit/server/http/http_client.h"

namespace sft::server {

inline constexpr char kAny[] = "127.0.0.1:0";

inline int PortOf(const Server& server) {
  const std::string address = server.http_address();
  return std::stoi(address.substr(address.rfind(':') + 1));
}

inline std::string PostText(const std::string& path, const std::string& body,
                            const std::string& more = "") {
  return "POST " + path +
         " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Type: application/json\r\n" +
         more + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline std::string BodyOf(const std::string& answer) {
  const size_t end = answer.find("\r\n\r\n");
  return end == answer.npos ? "" : answer.substr(end + 4);
}

inline nlohmann::json JsonIn(const std::string& answer) { return ParseJson(BodyOf(answer)); }

// The value of a field of an answer's head.
inline std::string FieldOf(const std::string& answer, const std::string& name) {
  const size_t at = answer.find("\r\n" + name + ": ");
  if (at == answer.npos || at > answer.find("\r\n\r\n")) return "";
  const size_t begin = at + name.size() + 4;
  return answer.substr(begin, answer.find("\r\n", begin) - begin);
}

inline std::string Bearer(const std::string& token) {
  return "Authorization: Bearer " + token + "\r\n";
}

}  // namespace sft::server
