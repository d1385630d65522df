-- What a modulefile does to the environment, told and not done:  lua read-modulefile.lua FILE NAME VERSION
--
-- It runs with the functions of Lmod that modulefiles use, and with none that reach files or programs. For each act four
-- words are written, each with a NUL behind it: set, prepend, append or other; a name; a value; a separator.
-- Lmod's functions: https://lmod.readthedocs.io/en/latest/050_lua_modulefiles.html

local path, name, version = arg[1], arg[2], arg[3]
local INSTRUCTIONS = 5e7 -- of a modulefile that ends

local function refuse(problem)
    io.stderr:write((tostring(problem):gsub("%c", " ")), "\n")
    os.exit(1)
end

local MOST_TOLD = 4e6 -- bytes
local told = 0

local function tell(kind, name, value, separator)
    for _, word in ipairs({ kind, tostring(name), tostring(value), separator }) do
        told = told + #word + 1
        if told > MOST_TOLD then refuse("it does too much") end
        io.write(word, "\0")
    end
end

-- What a modulefile asks of the environment is this user's: a value that is made of it is nobody else's.
local OF_USER = "\1of-the-environment\1"

local function set(kind, name, value, separator)
    if type(name) ~= "string" or (type(value) ~= "string" and type(value) ~= "number") then
        tell("other", kind, tostring(name) .. ": its value is no text", "")
    elseif tostring(value):find(OF_USER, 1, true) then
        tell("other", kind, name .. ": its value depends on who loads the module", "")
    else
        tell(kind, name, value, separator)
    end
end

-- A call as Lmod takes it: f(NAME, VALUE, SEPARATOR), or f{NAME, VALUE, delim = SEPARATOR}.
local function words(first, value, separator)
    if type(first) == "table" then return first[1], first[2], first.delim end
    return first, value, separator
end

local known = {}

function known.setenv(...)
    local variable, value = words(...)
    set("set", variable, value, "")
end
known.pushenv = known.setenv

function known.prepend_path(...)
    local variable, value, separator = words(...)
    set("prepend", variable, value, type(separator) == "string" and separator or ":")
end

function known.append_path(...)
    local variable, value, separator = words(...)
    set("append", variable, value, type(separator) == "string" and separator or ":")
end

function known.pathJoin(...)
    local joined = table.concat({ ... }, "/"):gsub("/+", "/")
    return joined
end

function known.isFile() return true end
function known.isDir() return true end
function known.mode() return "load" end
function known.myModuleName() return name end
function known.myModuleVersion() return version end
function known.myModuleFullName() return name .. "/" .. version end
function known.myFileName() return path end
function known.hierarchyA() return {} end
function known.isloaded() return false end
function known.userInGroup() return false end

-- What describes a module is hpcstack's to write; what it says to users on a load is told as left out.
for _, quiet in ipairs({ "whatis", "help", "family", "conflict", "extensions", "add_property", "color_banner" }) do
    known[quiet] = function() end
end

known.string, known.table, known.math = string, table, math
known.pairs, known.ipairs, known.next, known.select, known.type = pairs, ipairs, next, select, type
known.tostring, known.tonumber, known.error, known.pcall, known.assert = tostring, tonumber, error, pcall, assert
known.os = { getenv = function() return OF_USER end, date = os.date, time = os.time }
known.io = { open = function() end, lines = function() return function() end end }
known._G = known

-- What else Lmod has for modulefiles: told, not done. Any other name means nothing, as under Lmod.
local others = {
    "load", "load_any", "try_load", "always_load", "unload", "depends_on", "depends_on_any", "prereq", "prereq_any",
    "atleast", "between", "latest", "always_unload", "set_alias", "unset_alias", "set_shell_function",
    "unset_shell_function", "execute", "source_sh", "complete", "uncomplete", "unsetenv", "remove_path", "inherit",
    "LmodError", "LmodWarning", "LmodMessage", "LmodBreak", "LmodMsgRaw", "subprocess", "capture", "require_fullname",
    "module_name", "haveDynamicMPATH", "purge", "reset", "setenv_allow_empty", "build_module_table",
}
for _, called in ipairs(others) do
    known[called] = function(...)
        local given = {}
        for _, word in ipairs({ ... }) do
            given[#given + 1] = type(word) == "string" and word:sub(1, 200):gsub(OF_USER, "?") or type(word)
        end
        tell("other", called, table.concat(given, ", "), "")
    end
end
known.convertToCanonical = tostring
known.splitFileName = function(name) return name:match("^(.-)([^/]*)$") end

local file, unreadable = io.open(path, "rb")
if not file then refuse(unreadable) end
local text = file:read("*a")
file:close()
if text:sub(1, 1) == "\27" then refuse("it is not a text file") end

local run, problem
if setfenv then
    run, problem = loadstring(text, "@" .. path)
    if run then setfenv(run, known) end
else
    run, problem = load(text, "@" .. path, "t", known)
end
if not run then refuse(problem) end
debug.sethook(function() error("it does not end", 0) end, "", INSTRUCTIONS)
local ended, why = pcall(run)
if not ended then refuse(why) end
