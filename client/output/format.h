#pragma once

#include <google/protobuf/timestamp.pb.h>

#include <cstdint>
#include <string>

namespace sft::client {

// Shortens "projects/p/jobs/job-abc" to "job-abc"; control characters, which no id has, are shown.
std::string ShortName(const std::string& name);
// "p" of "projects/p/jobs/job-abc"; empty where a name says none.
std::string ProjectOfName(const std::string& name);
std::string Bytes(int64_t bytes);      // "1.25 GB" (10^9)
std::string Duration(double seconds);  // "59s", "3m20s", "2h05m", "4d03h"
std::string Count(double value);       // "950", "12.3k", "4.56M"
std::string Utc(const google::protobuf::Timestamp& time);
double Seconds(const google::protobuf::Timestamp& time);

}  // namespace sft::client
