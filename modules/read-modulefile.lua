-- What a modulefile does to the environment, told and not done:  lua read-modulefile.lua FILE NAME VERSION
--
-- It runs with the functions of Lmod that modulefiles use, and with none that reach files or programs. For each act four
-- words are written, each with a NUL behind it: set, unset, prepend, append, remove or other; a name; a value; a separator.
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
local own = {} -- variables that the modulefile itself has set

function known.setenv(...)
    local variable, value = words(...)
    local is_text = type(value) == "string" or type(value) == "number"
    if type(variable) == "string" then own[variable] = is_text and tostring(value) or nil end
    set("set", variable, value, "")
end
known.pushenv = known.setenv

function known.unsetenv(...)
    local variable = words(...)
    if type(variable) == "string" then own[variable] = nil end
    set("unset", variable, "", "")
end

function known.remove_path(...)
    local variable, value, separator = words(...)
    set("remove", variable, value, type(separator) == "string" and separator or ":")
end

-- What a modulefile does where the variable is not set, or is another, is not seen: so the question is told.
local function getenv(variable)
    local had = own[tostring(variable)]
    if had ~= nil then return had end
    tell("other", "os.getenv", tostring(variable):sub(1, 200) .. ": what is done may depend on it", "")
    return OF_USER
end

function known.prepend_path(...)
    local variable, value, separator = words(...)
    set("prepend", variable, value, type(separator) == "string" and separator or ":")
end

function known.append_path(...)
    local variable, value, separator = words(...)
    set("append", variable, value, type(separator) == "string" and separator or ":")
end

function known.pathJoin(...)
    local parts = {}
    for number = 1, select("#", ...) do
        local part = select(number, ...)
        if part ~= nil and part ~= "" then parts[#parts + 1] = tostring(part) end
    end
    return (table.concat(parts, "/"):gsub("/+", "/"))
end

-- Files: those of the cluster, which cannot be asked here. What is asked for is taken to be there, as on the nodes for
-- which the modulefile was written.
function known.isFile() return true end
function known.isDir() return true end
function known.splitFileName(file) return file:match("^(.-)([^/]*)$") end
function known.dirname(file) return file:match("^(.*/)") or "./" end
function known.barefilename(file) return file:match("([^/]*)$") end
function known.extname(file) return file:match("%.[^./]*$") or "" end
function known.removeExt(file) return (file:gsub("%.[^./]*$", "")) end
function known.abspath(file) return file end
function known.path_regularize(file) return (file:gsub("/+", "/"):gsub("(.)/$", "%1")) end

-- The module itself, and who loads it: a module of hpcstack's is one for all shells and users.
function known.mode() return "load" end
function known.is_spider() return false end
function known.myModuleName() return name end
function known.myModuleVersion() return version end
function known.myModuleFullName() return name .. "/" .. version end
known.myModuleUsrName = known.myModuleFullName
function known.myFileName() return path end
function known.myShellName() return "bash" end
function known.myShellType() return "sh" end
function known.hierarchyA() return {} end
function known.isDefined(variable) return variable ~= nil end
function known.isNotDefined(variable) return variable == nil end
function known.UUIDString() return OF_USER end
function known.moduleStackTraceBack() return "" end
function known.colorize(_, ...) return table.concat({ ... }) end

-- A version as Lmod compares it: each number as wide as the others, so that 8.10 comes behind 8.9.
function known.convertToCanonical(text)
    return (tostring(text):lower():gsub("%d+", function(digits) return ("0"):rep(9 - #digits) .. digits end))
end
function known.LmodVersion() return "99" end -- a newer one than any that modulefiles ask for
known._VERSION = _VERSION

-- What describes a module is hpcstack's to write; what it says to users on a load is told as left out.
local quiet = {
    "whatis", "help", "family", "conflict", "extensions", "add_property", "remove_property", "color_banner", "print",
    "mkdir_recursive",
}
for _, called in ipairs(quiet) do
    known[called] = function() end
end

-- Strings have two functions more under Lmod.
function string.split(text, pattern)
    local at, found = 1, {}
    while true do
        local first, last = text:find(pattern or "%s+", at)
        if not first or last < first then break end
        found[#found + 1] = text:sub(at, first - 1)
        at = last + 1
    end
    found[#found + 1] = text:sub(at)
    local next_one = 0
    return function()
        next_one = next_one + 1
        return found[next_one]
    end
end
function string.escape(text) return (text:gsub("([%^%$%(%)%%%.%[%]%*%+%-%?])", "%%%1")) end

known.string, known.table, known.math = string, table, math
known.pairs, known.ipairs, known.next, known.select, known.type = pairs, ipairs, next, select, type
known.tostring, known.tonumber, known.error, known.pcall, known.assert = tostring, tonumber, error, pcall, assert
known.unpack = table.unpack or unpack
known._G = known

-- What else Lmod has for modulefiles: told, not done. ANSWER is what the modulefile gets. Any other name means nothing, as
-- under Lmod.
local function told_only(called, answer)
    return function(...)
        local given = {}
        for number = 1, select("#", ...) do
            local word = select(number, ...)
            given[number] = type(word) == "string" and word:sub(1, 200):gsub(OF_USER, "?") or type(word)
        end
        tell("other", called, table.concat(given, ", "), "")
        return answer
    end
end

local others = {
    "load", "load_any", "try_load", "try_add", "mgrload", "always_load", "unload", "depends_on", "depends_on_any", "prereq",
    "prereq_any", "atleast", "between", "latest", "always_unload", "set_alias", "unset_alias", "set_shell_function",
    "unset_shell_function", "execute", "source_sh", "complete", "uncomplete", "inherit",
    "LmodError", "LmodWarning", "LmodMessage", "LmodBreak", "LmodMsgRaw", "LmodSystemError", "requireFullName",
    "require_fullname", "module_name", "haveDynamicMPATH", "purge", "reset", "setenv_allow_empty", "build_module_table",
    "loadfile",
}
for _, called in ipairs(others) do
    known[called] = told_only(called)
end
-- What depends on the session that loads the module: taken as no, and told, as the modulefile may do something else then.
function known.isloaded() return false end -- asked before each `load`, which is told
for _, called in ipairs({ "isAvail", "isPending", "userInGroup", "userInGroups" }) do
    known[called] = told_only(called, false)
end
function known.loaded_modules() return {} end
-- shpc asks for its own folder by a program.
function known.subprocess(command)
    local asked = tostring(command):match("^realpath (%S+)$")
    if asked then return asked .. "\n" end
    told_only("subprocess")(command)
    return OF_USER
end
known.capture = known.subprocess

-- The parts of Lua's and POSIX's libraries that Lmod lets modulefiles have.
local function told_members(of, members)
    return setmetatable(members, {
        __index = function(_, member) return told_only(of .. "." .. tostring(member)) end,
    })
end
local function stream(of)
    local written
    written = { close = function() end, flush = function() return written end, setvbuf = function() end }
    function written.write(_, ...)
        told_only(of)(...)
        return written
    end
    return written
end

known.os = told_members("os", {
    getenv = getenv, date = os.date, time = os.time, clock = os.clock, difftime = os.difftime,
})
known.io = told_members("io", {
    stderr = stream("io.stderr:write"), stdout = stream("io.stdout:write"), write = told_only("io.write"),
    open = function() end, close = function() end, lines = function() return function() end end,
})
known.posix = told_members("posix", {
    uname = function(what) return what and OF_USER or { machine = OF_USER, nodename = OF_USER, sysname = "Linux" } end,
    hostid = function() return OF_USER end,
})
known.lfs = told_members("lfs", { currentdir = function() return OF_USER end })
known.package = { path = "", cpath = "", loaded = {} }
local none = function() end
known.dbg = setmetatable({ active = function() return false end }, { __index = function() return none end })
function known.require(library)
    if rawget(known, library) ~= nil then return known[library] end
    told_only("require")(library)
    return told_members(tostring(library), {})
end

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

-- Where the modulefile was when something went wrong, also in one of the functions above.
local function locate(why)
    local text = tostring(why):gsub("^[^:]*:%d+: ", "")
    for level = 2, 50 do
        local about = debug.getinfo(level, "Sl")
        if not about then break end
        if about.source == "@" .. path then return ("line %d: %s"):format(about.currentline, text) end
    end
    return text
end
local ended, why = xpcall(run, locate)
if not ended then refuse(why) end
