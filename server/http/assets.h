#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/http/http_stream.h"

namespace sft::server {

// The files of the web page: those in this program (server/dashboard, embedded when it was built),
// or those of a folder, for who works on them. Public: they hold no data. Thread-safe.
class Assets {
 public:
  static constexpr std::string_view kRoot = "/assets/";

  // `folder`: to read them from at each request; empty: those in this program.
  explicit Assets(std::string folder) : folder_(std::move(folder)) {}

  // The file of a path: "/assets/NAME", the icon, or the page itself, which finds out by its path
  // what to show. In the HTTP server's thread, which files of a folder hold up for a moment.
  void Answer(HttpStream& stream) const;

 private:
  const std::string folder_;
};

}  // namespace sft::server
